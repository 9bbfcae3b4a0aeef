"""Where each rank computes: its device, and its share of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hpcfed.comm.agree import on_all_ranks
from hpcfed.machine import devices, sharing

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job


@dataclass(frozen=True)
class Seat:
    """share: bytes of the GPU's memory for this rank, 0 on a CPU.  warning: of ranks that share one
    unasked; or "".
    """

    device: torch.device
    share: float
    warning: str


def seat(job: Job, comm: Comm) -> Seat:
    """This rank's device, prepared; collective. Raises ConfigError on all ranks where the job wants
    another.
    """
    seen = comm.gather({comm.rank: (comm.node_of[comm.rank], sharing.visible(job.run.device))})
    gpu, shared = sharing.take(seen).get(comm.rank), sharing.sharers(seen)
    device = on_all_ranks(comm, lambda: devices.choose(job.run.device, gpu, job.run.precision))
    warning = on_all_ranks(comm, lambda: sharing.check_sharing(shared, job.run.ranks_per_gpu))
    devices.prepare(device, job.run.threads, job.run.precision)
    devices.cap(device, len(shared[comm.rank]))
    return Seat(device, devices.share(device, len(shared[comm.rank])), warning)
