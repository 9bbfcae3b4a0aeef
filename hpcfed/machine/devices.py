"""The device of a rank, and the settings that make its results repeatable."""

import os

import torch

from hpcfed.core.errors import ConfigError
from hpcfed.machine.allocator import keep_memory

CONTEXT = 2**29  # bytes of each process's CUDA context: an allowance, not measured
# set in batch jobs that have GPUs on a node
OF_SLURM = ("SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")


def choose(wanted: str, gpu: int | None, precision: str = "float32") -> torch.device:
    """Return the device of this rank: GPU number `gpu`, or the CPU if it is None.

    wanted: run.device.
    gpu: the number from `gpu_sharing.take`.
    Raises ConfigError for "cuda" without a GPU, and for a precision that the device does not have.
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


def allocated_gpus() -> str:
    """Return what says that the batch job has GPUs on this node; "" if nothing does."""
    values = {name: os.environ.get(name, "") for name in OF_SLURM}
    return next(
        (f"{name} = {value}" for name, value in values.items() if value not in ("", "0")), ""
    )


def prepare(device: torch.device, threads: int, precision: str = "float32") -> None:
    """Set what changes the bits of a result: threads, and a GPU's choice of kernels and precision.

    precision: "tf32" rounds the inputs of all matrix products and convolutions of this rank to 10
    bits.
    """
    torch.set_num_threads(threads)
    keep_memory()
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # else cuBLAS may sum in another order each time
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # torch warns where it has no such kernel; `use_deterministic_algorithms` would say the same
        # to its compiler, which takes more than a second to load
        torch.set_deterministic_debug_mode("warn")
        torch.utils.deterministic.fill_uninitialized_memory = (  # type: ignore[attr-defined]  # not in its stubs
            False  # it costs one more kernel for each new tensor
        )


def wait(device: torch.device) -> None:
    """Wait until a GPU has done all that it was asked to do; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def share(device: torch.device, ranks: int) -> float:
    """Return the bytes of a GPU's memory for each of the ranks that compute on it; 0 on a CPU."""
    return (
        torch.cuda.get_device_properties(device).total_memory / ranks
        if device.type == "cuda"
        else 0.0
    )


def cap(device: torch.device, ranks: int) -> None:
    """Limit this rank to its share of a GPU's memory, which includes its CUDA context.

    A rank that exceeds its share releases its cached memory, and fails if that is not enough.
    Without a limit another rank would fail, although it stays within its share. Does nothing for a
    single rank.
    """
    if device.type == "cuda" and ranks > 1:
        fraction = (share(device, ranks) - CONTEXT) / share(device, 1)
        torch.cuda.set_per_process_memory_fraction(max(0.0, fraction), device)


def usable_bytes(device: torch.device) -> float:
    """Return the bytes of a GPU that this process may use."""
    return share(device, 1) * torch.cuda.get_per_process_memory_fraction(device)


def describe(device: torch.device) -> str:
    """Return the device's name as results record it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
