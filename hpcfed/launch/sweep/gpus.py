"""Distribution of this machine's GPUs among concurrent runs.

Each run counts only its own ranks, so without shares all runs would use the same GPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hpcfed.launch.doctor.probe import gpu_files
from hpcfed.storage.sweep import Sweep

MASK = "CUDA_VISIBLE_DEVICES"


def usable(sweep: Sweep) -> list[str]:
    """Return the GPUs that the sweep's runs may use, as CUDA_VISIBLE_DEVICES names them.

    The list is empty if all runs use CPUs. The variable is respected: no run sees a GPU that it
    hides.
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
    """Return the number of GPUs that torch sees, without using memory of any."""
    import torch  # takes seconds to load

    return torch.cuda.device_count()


def shares(gpus: Sequence[str], places: int) -> list[str | None]:
    """Return CUDA_VISIBLE_DEVICES for each of the concurrent runs.

    None leaves it unchanged, if there is nothing to share. Neighbouring GPUs stay together, because
    they are often linked. If there are more runs than GPUs, runs share one.
    """
    n = len(gpus)
    if not n or places == 1:
        return [None] * places
    if n < places:
        return [gpus[i % n] for i in range(places)]
    return [",".join(gpus[i * n // places : (i + 1) * n // places]) for i in range(places)]
