"""Ranks of methods over several data sets, and the difference between them that is significant.

Demšar, JMLR 7, 2006, section 3.2: methods are ranked on each data set by their mean over seeds, and
two methods differ significantly if their mean ranks differ by at least Nemenyi's critical
difference. Data sets are independent of each other, unlike the clients of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

SURE = 0.05  # level of the critical difference


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of methods over data sets; 1 is the best, and equal means share their ranks.

    mean: by method, the best first.
    sets: number of data sets.
    absent: methods that not all data sets have, which are not ranked.
    """

    mean: dict[str, float]
    sets: int
    absent: tuple[str, ...]

    @cached_property
    def critical(self) -> float:
        """The critical difference of these ranks."""
        return critical_difference(len(self.mean), self.sets)

    @property
    def cliques(self) -> list[tuple[str, ...]]:
        """Largest sets of methods whose ranks differ by less than the critical difference.

        They have two methods or more; each is not a part of another one.
        """
        names, cliques = list(self.mean), []
        end = 0  # of the clique before
        for i, best in enumerate(names):
            inside = [n for n in names[i:] if self.mean[n] - self.mean[best] < self.critical]
            if len(inside) > 1 and i + len(inside) > end:
                cliques.append(tuple(inside))
                end = i + len(inside)
        return cliques


def rank(means: Sequence[Mapping[str, float]], high: Sequence[bool] | None = None) -> Ranks:
    """Return the mean ranks of methods.

    means: for each data set, each method's mean.
    high: for each data set, whether higher values are better; None if they are on all.
    """
    from scipy.stats import rankdata  # here, because importing it takes a second

    everywhere = [name for name in means[0] if all(name in one for one in means)]
    names = list(dict.fromkeys(name for one in means for name in one))
    signs = [-1.0 if better else 1.0 for better in high or [True for _ in means]]
    by_set = [
        rankdata([sign * one[name] for name in everywhere])
        for sign, one in zip(signs, means, strict=True)
    ]
    mean = dict(zip(everywhere, np.mean(by_set, 0).tolist(), strict=True))
    order = sorted(everywhere, key=mean.__getitem__)
    absent = tuple(name for name in names if name not in mean)
    return Ranks({name: mean[name] for name in order}, len(means), absent)


def critical_difference(methods: int, sets: int) -> float:
    """Return Nemenyi's critical difference of the mean ranks of methods over data sets, at 5 %."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - SURE, methods, np.inf)) / 2**0.5
    return q * (methods * (methods + 1) / (6 * sets)) ** 0.5
