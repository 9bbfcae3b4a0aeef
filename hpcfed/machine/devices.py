"""The device of a rank, and the settings that make its results repeatable."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from hpcfed.core.errors import ConfigError
from hpcfed.machine.allocator import keep_memory

WORKSPACE = "256"  # MiB, of a convolution in cuDNN, at most
CONTEXT = 2**29  # bytes of each process's CUDA context: an allowance, not measured


def choose(wanted: str, gpu: int | None, precision: str = "float32") -> torch.device:
    """The GPU of this number, as `sharing.take` gave it out, for "auto" or "cuda".

    The CPU where it is None.

    Raises ConfigError for cuda without a GPU, and for a precision that the device does not have.
    """
    if wanted == "cuda" and gpu is None:
        raise ConfigError(
            "run.device = 'cuda', but torch sees no GPU here; use run.device = 'auto' or 'cpu'"
        )
    if precision == "tf32" and gpu is None:
        raise ConfigError(
            "run.precision = 'tf32' is of GPUs, but the device is a CPU; use 'float32' or 'bf16'"
        )
    return torch.device("cpu") if gpu is None else torch.device("cuda", gpu)


def prepare(device: torch.device, threads: int, precision: str = "float32") -> None:
    """Fix what changes the bits of a result: threads, and on a GPU the choice and precision of
    kernels.

    precision: "tf32" rounds what matrix products and convolutions multiply to 10 bits, in all that
    the rank computes.
    """
    torch.set_num_threads(threads)
    keep_memory()
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # else cuBLAS may sum in another order each time
        # Where memory is short for the workspace of a convolution's best plan, torch takes the next
        # plan, which rounds otherwise: plans that want much are left out wherever the run is.
        os.environ.setdefault("CUDNN_CONV_WSCAP_DBG", WORKSPACE)
        torch.use_deterministic_algorithms(
            True, warn_only=True
        )  # torch warns where it has no such kernel
        torch.utils.deterministic.fill_uninitialized_memory = (  # type: ignore[attr-defined]  # not in its stubs
            False  # a kernel more for each tensor that is made
        )


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    """Inside, a local objective is computed: with "bf16" products in bfloat16, and in float32 what
    needs its range.
    """
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def full(device: torch.device) -> AbstractContextManager:
    """Inside, nothing is lowered: for the few products whose rounding a loss multiplies.

    What was computed in bfloat16 before has to be made float32 by `raised`.
    """
    kind = device.type
    if not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def raised(tensor: torch.Tensor) -> torch.Tensor:
    """A bfloat16 tensor as float32; others as they are."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def share(device: torch.device, ranks: int) -> float:
    """Bytes of a GPU's memory for each of the ranks that compute on it; 0 on a CPU."""
    return (
        torch.cuda.get_device_properties(device).total_memory / ranks
        if device.type == "cuda"
        else 0.0
    )


def cap(device: torch.device, ranks: int) -> None:
    """Let this rank take no more of a GPU than its share, of which its CUDA context takes a part.

    A rank that wants more gives back what it only keeps, and fails where that is not enough:
    without a cap another rank would, which is within its share. Where it is alone nothing is done.
    """
    if device.type == "cuda" and ranks > 1:
        own = (share(device, ranks) - CONTEXT) / share(device, 1)
        torch.cuda.set_per_process_memory_fraction(max(0.0, own), device)


def room(device: torch.device) -> float:
    """Bytes of a GPU that this process may take."""
    return share(device, 1) * torch.cuda.get_per_process_memory_fraction(device)


def describe(device: torch.device) -> str:
    """The device's name as results record it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
