"""Centred clipping, and a bound on the length of updates.

Karimireddy, He and Jaggi, ICML 2021, arXiv:2012.10333 (centred clipping): from v, the update that
the server made in the round before (0 at first),

    v <- v + 1/n sum_k (x_k - v) min(1, tau / ||x_k - v||),

several times if the job says so. Of f attackers it takes on at most f tau / n in each iteration.
Clients count alike. Deviation: the authors' clients send momenta; here these are updates.

Sun, Kairouz, Suresh and McMahan, 2019, arXiv:1911.07963 (bound): x_k min(1, C / ||x_k||), averaged
with the method's weights. Without a given C it is the median of the lengths in the round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcfed.federation.transforms.comparison import Comparison
from hpcfed.federation.transforms.defence.geometric_median import distances_to
from hpcfed.federation.transforms.defence.rule import Choice, Rule

if TYPE_CHECKING:
    from hpcfed.core.params import Params
    from hpcfed.federation.federation import Federation


class CentredClipping(Rule):
    """The mean of updates that are clipped around the last one of the server.

    clip: tau.  iterations: of the formula.
    """

    remembers = True

    def __init__(self, clip: float, iterations: int) -> None:
        self.clip, self.iterations = clip, iterations

    def server(self, fed: Federation, keep: Params, last: Params) -> list[Params]:
        return [last]

    def choose(self, updates: Comparison) -> Choice:
        n = updates.n
        parts = np.zeros(n + 1)  # of the clients' updates, and of v
        parts[n] = 1.0
        for _ in range(self.iterations):
            factors = shrinking(distances_to(parts, updates.gram)[:n], self.clip)
            parts *= 1 - factors.mean()
            parts[:n] += factors / n
        return Choice(np.ones(n), n * parts[:n], server=parts[n:])


class NormBound(Rule):
    """The mean of updates of bounded length.

    clip: C; None: the median of the lengths.
    """

    pairs, weighted = False, True

    def __init__(self, clip: float | None) -> None:
        self.clip = clip

    def choose(self, updates: Comparison) -> Choice:
        lengths = updates.lengths
        bound = np.median(lengths) if self.clip is None else self.clip
        return Choice(updates.weights, shrinking(lengths, bound))


def shrinking(lengths: np.ndarray, bound: float) -> np.ndarray:
    """Return the factors that shorten vectors to a bound; 1 for those within it."""
    return np.divide(bound, lengths, out=np.ones_like(lengths), where=lengths > bound)
