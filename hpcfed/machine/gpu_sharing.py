"""Which GPU each rank takes, and who shares one.

Plain lists of names, so that it needs no GPU to be tested.

A GPU is known by a name that is the same for all ranks of its node, whatever number it has for
them: Slurm's `--gpus-per-task` shows each rank one GPU, which is number 0 for all of them.
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
    """Names of the GPUs that this process may use, in torch's order.

    None where the CPU is wanted.
    """
    import torch

    if wanted == "cpu":
        return []
    mask = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    n = torch.cuda.device_count()
    known = [getattr(torch.cuda.get_device_properties(i), "uuid", "") for i in range(n)]
    return [gpu_name(i, mask, str(uuid)) for i, uuid in enumerate(known)]


def gpu_name(i: int, mask: Sequence[str], uuid: str) -> str:
    """The name of GPU number i. mask: the parts of CUDA_VISIBLE_DEVICES.

    A part of a GPU (MIG) has the name in the mask, for its uuid may be that of the whole; without a
    uuid the mask's number stands, which is right as long as all ranks of the node have masks of the
    same GPUs.
    """
    given = mask[i] if i < len(mask) else ""
    if given.startswith("MIG-") or not uuid:
        return given or str(i)
    return uuid


def take(seen: Mapping[int, tuple[int, Sequence[str]]]) -> dict[int, int]:
    """The number of the GPU that each rank takes, as that rank counts.

    Ranks that see none are left out.

    seen: by rank, its node and the names of the GPUs that it sees.  Each takes the one with the
    fewest ranks so far: where all ranks of a node see the same GPUs that is (local rank modulo
    GPUs), where each sees one, it is 0.
    """
    taken: Counter[tuple[int, str]] = Counter()
    numbers = {}
    for rank, (node, names) in sorted(seen.items()):
        if names:
            numbers[rank] = min(range(len(names)), key=lambda i: (taken[node, names[i]], i))
            taken[node, names[numbers[rank]]] += 1
    return numbers


def sharers(seen: Mapping[int, tuple[int, Sequence[str]]]) -> dict[int, list[int]]:
    """By rank, the ranks that compute on its GPU, itself included.

    Nobody for a rank without one.
    """
    gpu = {rank: (seen[rank][0], seen[rank][1][i]) for rank, i in take(seen).items()}
    return {
        rank: [other for other, name in gpu.items() if name == gpu.get(rank)]
        for rank in sorted(seen)
    }


def check_sharing(shared: Mapping[int, Sequence[int]], allowed: int | None) -> str:
    """A warning where ranks share a GPU unasked; "" otherwise. allowed: run.ranks_per_gpu.

    Raises ConfigError for more ranks on a GPU than are allowed.
    """
    most = max(shared.values(), key=len, default=[])
    ranks = ", ".join(map(str, most))
    if allowed and len(most) > allowed:
        raise ConfigError(
            f"run.ranks_per_gpu = {allowed}, but ranks {ranks} would share one GPU; start fewer "
            f"ranks a node "
            f"(--ntasks-per-node, or mpirun --map-by ppr:N:node), or set run.ranks_per_gpu = "
            f"{len(most)}"
        )
    if allowed or len(most) < 2:
        return ""
    return (
        f"warning: ranks {ranks} share one GPU; one rank a GPU is usual, run.ranks_per_gpu = "
        f"{len(most)} says that "
        f"it is meant; {MPS}"
    )
