"""K-means with centres that outliers do not move.

Points are models as `clusters.stack` has them: each tensor [N, *shape].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hpcfed.algorithms.clusters import clusters
from hpcfed.core.params import Params


def trimmed_mean(values: Tensor, share: float) -> Tensor:
    """By coordinate, the mean of what is left when this share of the smallest and of the largest of
    n values is left out: [n, ...] -> [...].

    At least one value is left, or two of an even number: with share 0.5 it is the median.  Yin et
    al., ICML 2018, arXiv:1803.01498, definitions 1 and 2.
    """
    n = len(values)
    cut = min(int(share * n + 1e-9), (n - 1) // 2)
    kept = values.sort(0).values[cut : n - cut] if cut else values
    return kept.double().mean(0).to(values.dtype)


def assign(points: Params, centres: Params, wanted: Callable[[str], bool]) -> list[int]:
    """The nearest centre of each point over the wanted tensors, of equals the first."""
    n = len(next(iter(points.values())))
    return [clusters.nearest(clusters.row(points, i), centres, wanted)[0] for i in range(n)]


def move(points: Params, centres: Params, members: Sequence[int], share: float) -> Params:
    """Each centre to the trimmed mean of its members; one without members stays where it is."""
    at = torch.tensor(members)
    new = centres.clone()
    for m in range(len(next(iter(centres.values())))):
        own = (at == m).nonzero()[:, 0]
        if len(own):
            for name, value in points.items():
                new[name][m] = trimmed_mean(value[own.to(value.device)], share)
    return new


def lloyd(
    points: Params, centres: Params, wanted: Callable[[str], bool], share: float, iterations: int
) -> tuple[Params, list[int]]:
    """The centres after so many iterations, and the cluster of each point in the last of them."""
    members = assign(points, centres, wanted)
    for i in range(iterations):
        members = assign(points, centres, wanted) if i else members
        centres = move(points, centres, members, share)
    return centres, members
