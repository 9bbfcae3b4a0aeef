"""Assignment of GPUs to ranks, and which ranks share one.

It works on plain lists of names, so it can be tested without a GPU. A GPU's name is the same for
all ranks of its node, whatever number it has for them: Slurm's `--gpus-per-task` shows each rank
one GPU, which has number 0 for all of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from hpcfed.core.errors import ConfigError

MPS = (
    "NVIDIA's MPS (nvidia-cuda-mps-control -d, on each node, before the run) lets them compute "
    "at the same time; "
    "without it they take turns"
)


def visible(wanted: str) -> list[str]:
    """Return the names of the GPUs that this process may use, in torch's order.

    Returns an empty list if the CPU is wanted.
    """
    import torch

    if wanted == "cpu":
        return []
    mask = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    n = torch.cuda.device_count()
    uuids = [getattr(torch.cuda.get_device_properties(i), "uuid", "") for i in range(n)]
    return [gpu_name(i, mask, str(uuid)) for i, uuid in enumerate(uuids)]


def gpu_name(i: int, mask: Sequence[str], uuid: str) -> str:
    """Return the name of GPU number i.

    mask: the parts of CUDA_VISIBLE_DEVICES.
    A partition of a GPU (MIG) has its name from the mask, because its uuid may be that of the whole
    GPU. Without a uuid the number in the mask is used, which is right as long as the masks of all
    ranks of the node refer to the same GPUs.
    """
    entry = mask[i] if i < len(mask) else ""
    if entry.startswith("MIG-") or not uuid:
        return entry or str(i)
    return uuid


def take(gpus: Mapping[int, tuple[int, Sequence[str]]]) -> dict[int, int]:
    """Return the number of each rank's GPU, as that rank counts them.

    Ranks that see no GPU are left out.
    gpus: by rank, its node and the names of the GPUs that it sees.
    Each rank takes the GPU with the fewest ranks so far. If all ranks of a node see the same GPUs,
    that is (local rank modulo GPUs); if each sees one, it is 0.
    """
    taken: Counter[tuple[int, str]] = Counter()
    numbers = {}
    for rank, (node, names) in sorted(gpus.items()):
        if names:
            numbers[rank] = min(range(len(names)), key=lambda i: (taken[node, names[i]], i))
            taken[node, names[numbers[rank]]] += 1
    return numbers


def sharers(gpus: Mapping[int, tuple[int, Sequence[str]]]) -> dict[int, list[int]]:
    """Return, by rank, the ranks that compute on its GPU, itself included.

    The list is empty for a rank without a GPU.
    """
    gpu = {rank: (gpus[rank][0], gpus[rank][1][i]) for rank, i in take(gpus).items()}
    return {
        rank: [other for other, name in gpu.items() if name == gpu.get(rank)]
        for rank in sorted(gpus)
    }


def check_sharing(shared: Mapping[int, Sequence[int]], allowed: int | None) -> str:
    """Return a warning if ranks share a GPU although the job does not say so, else "".

    allowed: run.ranks_per_gpu. Raises ConfigError if more ranks than that share a GPU.
    """
    most = max(shared.values(), key=len, default=[])
    ranks = ", ".join(map(str, most))
    if allowed and len(most) > allowed:
        raise ConfigError(
            f"run.ranks_per_gpu = {allowed}, but ranks {ranks} would share one GPU; start fewer "
            f"ranks per node "
            f"(--ntasks-per-node, or mpirun --map-by ppr:N:node), or set run.ranks_per_gpu = "
            f"{len(most)}"
        )
    if allowed or len(most) < 2:
        return ""
    return (
        f"ranks {ranks} share one GPU; one rank a GPU is usual, run.ranks_per_gpu = "
        f"{len(most)} says that "
        f"it is meant; {MPS}"
    )
