"""Choice of each rank's device, and its share of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.machine import devices, gpu_sharing

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job


@dataclass(frozen=True)
class DeviceChoice:
    """The device of a rank.

    share: bytes of the GPU's memory for this rank, 0 on a CPU.
    ranks: number of ranks that compute on the GPU, 0 on a CPU.
    warning: a message if ranks share a GPU although the job does not say so, else "".
    """

    device: torch.device
    share: float
    ranks: int
    warning: str


def choose_device(job: Job, comm: Comm) -> DeviceChoice:
    """Choose and prepare this rank's device; collective.

    Raises ConfigError on all ranks if a device that the job asks for is not available.
    """
    gpus = comm.gather({comm.rank: (comm.node_of[comm.rank], gpu_sharing.visible(job.run.device))})
    gpu, shared = gpu_sharing.take(gpus).get(comm.rank), gpu_sharing.sharers(gpus)

    def choose() -> tuple[torch.device, str]:
        device = devices.choose(job.run.device, gpu, job.run.precision)
        return device, gpu_sharing.check_sharing(shared, job.run.ranks_per_gpu)

    device, warning = on_all_ranks(comm, choose)
    devices.prepare(device, job.run.threads, job.run.precision)
    ranks = len(shared[comm.rank])
    devices.cap(device, ranks)
    return DeviceChoice(device, devices.share(device, ranks), ranks, warning)


def resident_bytes(job: Job, share: float) -> float:
    """Return how many bytes of clients' weights and memories a rank keeps in a GPU's memory.

    share: bytes of the GPU's memory for this rank.
    """
    wanted = job.run.device_resident
    return share / 2 if wanted is None else wanted * 2**30
