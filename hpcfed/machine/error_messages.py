"""Classification and messages of errors in a client's training."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from hpcfed.core import user_code
from hpcfed.core.errors import DataError, DivergedError, HpcfedError
from hpcfed.machine.devices import usable_bytes

if TYPE_CHECKING:
    from hpcfed.config.job import Job

ADVICE = (  # where memory does not suffice
    "make models or data smaller, or give each rank more memory (fewer ranks per node, larger "
    "nodes)"
)
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
TRIED = re.compile(r"Tried to allocate ([\d.]+) (B|KiB|MiB|GiB)")  # in torch's message


class MemoryFault(HpcfedError):
    """A client's training needs more memory than there is."""


NO_MEMORY = (  # of torch's allocator on the host, of oneDNN, and of Python's threads
    "can't allocate memory",
    "could not create a primitive",
    "could not create a memory",
    "can't start new thread",
)


def out_of_memory(error: BaseException) -> bool:
    """Return whether the error means that memory of a GPU or the host is exhausted.

    torch's allocator of host memory, oneDNN and threads raise a plain RuntimeError.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    )


def kind(error: BaseException) -> str:
    """Return the type of a client's failure (`replay_log.WHY`), or "" if the error is a bug."""
    kinds = {
        "memory": out_of_memory(error),
        "diverged": isinstance(error, DivergedError),
        "data": isinstance(error, DataError) or cannot_be_read(error),
    }
    return next((name for name, applies in kinds.items() if applies), "")


def cannot_be_read(error: BaseException) -> bool:
    """Return whether examples cannot be read; an OSError of the user's own code is a mistake."""
    return isinstance(error, OSError) and not user_code.is_raised_there(error)


def memory_allocated(device: torch.device) -> int:
    """Return the bytes of this rank's tensors on a GPU now; 0 on a CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def explain_fault(
    error: Exception, where: str, job: Job, device: torch.device, steady: int
) -> Exception:
    """Return the error to be raised: one with a message that names the client.

    where: the client, in words.
    steady: `memory_allocated` before its training.
    """
    if out_of_memory(error):
        return MemoryFault(f"{where}: {no_room(error, job.local.batch, device, steady)}")
    if cannot_be_read(error):
        return DataError(
            f"{where}: its examples cannot be read: {error}; check the files of data.root"
        )
    if isinstance(error, DataError) and not str(error).startswith("rank "):
        return DataError(f"{where}: {error}")
    return error


def no_room(error: Exception, batch: int, device: torch.device, steady: int) -> str:
    """Return a message that says which memory was exhausted, and what may help."""
    advice = "set a smaller local.batch, or start fewer ranks on this machine"
    if device.type != "cuda":
        return f"out of memory at local.batch = {batch}\n  {advice}"
    total = int(usable_bytes(device))
    peak = torch.cuda.max_memory_allocated(device)
    return (
        f"out of memory on the GPU at local.batch = {batch}\n  "
        f"{estimate(str(error), batch, total, peak, steady)}"
    )


def estimate(message: str, batch: int, total: int, peak: int, steady: int) -> str:
    """Return a message with the memory in use and a batch size that may fit.

    The memory of a step is assumed to be proportional to its examples.
    total: bytes of the device that this rank may use.
    peak: the largest number of bytes that this rank has had.
    steady: bytes in use without the step.
    A step needs at least its share of the peak and the allocation that failed, so the right batch
    size may be smaller still.
    """
    match = TRIED.search(message)
    need = peak - steady + (float(match[1]) * UNITS[match[2]] if match else 0)
    fits = min(batch // 2, int(batch * max(0, total - steady) / max(1, need)))
    words = (
        f"this rank had {peak / 2**30:.2f} GiB of {total / 2**30:.2f} GiB at its peak, "
        f"{steady / 2**30:.2f} GiB of it before the client's turn"
    )
    return f"{words}; " + (
        f"local.batch = {fits} may fit (an estimate)" if fits else "a smaller model is needed"
    )
