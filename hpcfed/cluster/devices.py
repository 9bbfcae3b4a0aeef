"""The device of a rank, and the settings that make its results repeatable."""

import math
import os
from contextlib import AbstractContextManager, nullcontext

import torch

from hpcfed.cluster.allocator import keep_memory
from hpcfed.errors import ConfigError


def choose(wanted: str, local_rank: int, precision: str = "float32") -> torch.device:
    """GPU number (local rank modulo GPUs) for "auto" or "cuda", else the CPU.

    Raises ConfigError for cuda without a GPU, and for a precision that the device does not have.
    """
    gpus = torch.cuda.device_count() if wanted != "cpu" else 0
    if wanted == "cuda" and not gpus:
        raise ConfigError("run.device = 'cuda', but torch sees no GPU here; use run.device = 'auto' or 'cpu'")
    if precision == "tf32" and not gpus:
        raise ConfigError("run.precision = 'tf32' is of GPUs, but the device is a CPU; use 'float32' or 'bf16'")
    return torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")


def prepare(device: torch.device, threads: int, precision: str = "float32") -> None:
    """Fix what changes the bits of a result: threads, and on a GPU the choice and precision of kernels.

    precision: "tf32" rounds what matrix products and convolutions multiply to 10 bits, in all that the rank computes.
    """
    torch.set_num_threads(threads)
    keep_memory()
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS may sum in another order each time
        torch.use_deterministic_algorithms(True, warn_only=True)  # torch warns where it has no such kernel
        torch.utils.deterministic.fill_uninitialized_memory = False  # a kernel more for each tensor that is made


def lowered(precision: str, device: torch.device) -> AbstractContextManager:
    """Inside, a local objective is computed: with "bf16" products in bfloat16, and in float32 what needs its range."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def room(device: torch.device, ranks: int) -> float:
    """Bytes of a GPU's memory in which this rank's clients may rest: half of its share. ranks: of this node."""
    if device.type == "cpu":
        return 0.0
    sharing = math.ceil(ranks / torch.cuda.device_count())
    return torch.cuda.get_device_properties(device).total_memory / sharing / 2


def describe(device: torch.device) -> str:
    """The device's name as results record it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
