"""The device of a rank, and the settings that make its results repeatable."""

import torch

from hpcfed.cluster.allocator import keep_memory
from hpcfed.errors import ConfigError


def choose(wanted: str, local_rank: int) -> torch.device:
    """GPU number (local rank modulo GPUs) for "auto" or "cuda", else the CPU. ConfigError for cuda without a GPU."""
    gpus = torch.cuda.device_count() if wanted != "cpu" else 0
    if wanted == "cuda" and not gpus:
        raise ConfigError("run.device = 'cuda', but torch sees no GPU here; use run.device = 'auto' or 'cpu'")
    return torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")


def prepare(device: torch.device, threads: int) -> None:
    """Fix what changes the bits of a result: threads, and on a GPU the choice and precision of kernels."""
    torch.set_num_threads(threads)
    keep_memory()
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    if device.type == "cuda":
        torch.cuda.set_device(device)


def describe(device: torch.device) -> str:
    """The device's name as results record it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
