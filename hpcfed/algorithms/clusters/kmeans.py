"""K-means that is robust to outliers.

Points are models as returned by `clusters.stack`, each tensor [N, *shape].
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hpcfed import Params
from hpcfed.algorithms.clusters import clusters


def trimmed_mean(values: Tensor, share: float) -> Tensor:
    """Return the trimmed mean of n values by coordinate, [n, ...] -> [...].

    This share of the smallest and of the largest values is left out. At least one value remains, or
    two of an even number; with share 0.5 the result is the median.
    Yin et al., ICML 2018, arXiv:1803.01498, definitions 1 and 2.
    """
    n = len(values)
    cut = min(int(share * n + 1e-9), (n - 1) // 2)
    remaining = values.sort(0).values[cut : n - cut] if cut else values
    return remaining.double().mean(0).to(values.dtype)


def assign(points: Params, centres: Params, wanted: Callable[[str], bool]) -> list[int]:
    """Return the nearest centre of each point over the wanted tensors; of equal ones the first."""
    n = len(next(iter(points.values())))
    return [clusters.nearest(clusters.row(points, i), centres, wanted)[0] for i in range(n)]


def move(points: Params, centres: Params, members: Sequence[int], share: float) -> Params:
    """Move each centre to the trimmed mean of its members; one without members stays."""
    at = torch.tensor(members)
    new = centres.clone()
    for m in range(len(next(iter(centres.values())))):
        rows = (at == m).nonzero()[:, 0]
        if len(rows):
            for name, value in points.items():
                new[name][m] = trimmed_mean(value[rows.to(value.device)], share)
    return new


def lloyd(
    points: Params, centres: Params, wanted: Callable[[str], bool], share: float, iterations: int
) -> tuple[Params, list[int]]:
    """Return the centres after these iterations, and each point's cluster in the last one."""
    members = assign(points, centres, wanted)
    for i in range(iterations):
        members = assign(points, centres, wanted) if i else members
        centres = move(points, centres, members, share)
    return centres, members
