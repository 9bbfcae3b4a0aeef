"""What can fail in a client's turn, and how it is told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from hpcfed.core.errors import DataError, DivergedError, HpcfedError
from hpcfed.machine.devices import room

if TYPE_CHECKING:
    from hpcfed.config.job import Job

ADVICE = (  # where memory does not suffice
    "make models or data smaller, or give each rank more memory (fewer ranks a node, larger nodes)"
)
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
TRIED = re.compile(r"Tried to allocate ([\d.]+) (B|KiB|MiB|GiB)")  # in torch's message


class MemoryFault(HpcfedError):
    """A client's training takes more memory than there is."""


def out_of_memory(error: BaseException) -> bool:
    """Whether it is that, of a GPU or of the host.

    torch's allocator of the host raises a plain RuntimeError.
    """
    return isinstance(
        error, torch.OutOfMemoryError | MemoryError
    ) or "can't allocate memory" in str(error)


def kind(error: BaseException) -> str:
    """The failure's kind, of `replay_log.WHY`; "": none of a client, but a bug."""
    kinds = {
        "memory": out_of_memory(error),
        "diverged": isinstance(error, DivergedError),
        "data": isinstance(error, DataError | OSError),
    }
    return next((name for name, found in kinds.items() if found), "")


def memory_allocated(device: torch.device) -> int:
    """Bytes that this rank's tensors take on a GPU now."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def explain_fault(
    error: Exception, where: str, job: Job, device: torch.device, steady: int
) -> Exception:
    """The error that is told: one message that names the client.

    steady: `memory_allocated` before its turn.
    """
    if out_of_memory(error):
        return MemoryFault(f"{where}: {no_room(error, job.local.batch, device, steady)}")
    if isinstance(error, OSError):
        return DataError(
            f"{where}: its examples cannot be read: {error}; check the files of data.root"
        )
    if isinstance(error, DataError) and not str(error).startswith("rank "):
        return DataError(f"{where}: {error}")
    return error


def no_room(error: Exception, batch: int, device: torch.device, steady: int) -> str:
    """What was missing, and what might do."""
    advice = "set a smaller local.batch, or start fewer ranks on this machine"
    if device.type != "cuda":
        return f"out of memory at local.batch = {batch}\n  {advice}"
    total = int(room(device))
    peak = torch.cuda.max_memory_allocated(device)
    return (
        f"out of memory on the GPU at local.batch = {batch}\n  "
        f"{estimate(str(error), batch, total, peak, steady)}"
    )


def estimate(message: str, batch: int, total: int, peak: int, steady: int) -> str:
    """A batch that may fit: what a step takes is thought to grow with its examples.

    total: bytes of the device that this rank may take.  peak: the most that this rank has had.
    steady: what it has without the step. The step takes at least what made the peak and what it
    asked for in vain, so that less may be needed yet.
    """
    found = TRIED.search(message)
    need = peak - steady + (float(found[1]) * UNITS[found[2]] if found else 0)
    fits = min(batch // 2, int(batch * max(0, total - steady) / max(1, need)))
    words = (
        f"this rank had {peak / 2**30:.2f} GiB of {total / 2**30:.2f} GiB at its peak, "
        f"{steady / 2**30:.2f} GiB of it before the client's turn"
    )
    return f"{words}; " + (
        f"local.batch = {fits} may fit (an estimate)" if fits else "a smaller model is needed"
    )
