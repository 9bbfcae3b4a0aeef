"""The GPUs of this machine, shared out among runs side by side.

Each run counts its ranks alone, so without shares all runs would take the same GPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hpcfed.launch.doctor.probe import gpu_files
from hpcfed.storage.sweep import Sweep

MASK = "CUDA_VISIBLE_DEVICES"


def usable(sweep: Sweep) -> list[str]:
    """The GPUs that the sweep's runs may use, as CUDA_VISIBLE_DEVICES names them.

    None where all are told to use CPUs.

    What that variable says is respected: no run sees a GPU that it hides.
    """
    if not gpu_files() or all(run.fields["run.device"] == "cpu" for run in sweep.runs):
        return []
    n, mask = count_gpus(), os.environ.get(MASK)
    return (
        [str(i) for i in range(n)]
        if mask is None
        else [part.strip() for part in mask.split(",")][:n]
    )


def count_gpus() -> int:
    """GPUs that torch sees; none is touched, so that this process takes nothing of their memory."""
    import torch  # takes seconds to load

    return torch.cuda.device_count()


def shares(gpus: Sequence[str], places: int) -> list[str | None]:
    """For each of so many runs side by side, its CUDA_VISIBLE_DEVICES.

    None: as it is, for there is nothing to share.

    Neighbours stay together, for they are often linked; where there are more runs than GPUs, runs
    share one.
    """
    n = len(gpus)
    if not n or places == 1:
        return [None] * places
    if n < places:
        return [gpus[i % n] for i in range(places)]
    return [",".join(gpus[i * n // places : (i + 1) * n // places]) for i in range(places)]
