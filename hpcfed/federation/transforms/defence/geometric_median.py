"""Geometric median: the point with the smallest sum of distances to the updates.

Pillutla, Kakade and Harchaoui, IEEE TSP 2022, arXiv:1912.13445 (RFA), algorithm 2: Weiszfeld's
method from the weighted mean z,

    b_k = a_k / max(nu, ||z - x_k||),    z <- sum_k b_k x_k / sum_k b_k,

where a_k are the clients' weights. It withstands attackers with less than half of the weight. All
iterations work on the matrix of inner products, so that their number costs little.

Deviation: 100 iterations (ITERATIONS); the authors' code takes at most 4. From the mean, attackers
with a share s of the weight who are far from the others pull z by s / (1 - s) of what they did one
iteration before. After 4 iterations attackers of 30 % have 5 % of their pull on the mean left,
after 100 those of 45 % less than 1e-8 of it.
"""

from __future__ import annotations

import numpy as np

from hpcfed.federation.transforms.comparison import Comparison
from hpcfed.federation.transforms.defence.rule import Choice, Rule

ITERATIONS = 100


class GeometricMedian(Rule):
    """The smoothed geometric median.

    nu: smallest distance that counts.
    iterations: of Weiszfeld's method, fewer if nothing changes any more; 0 is the weighted mean.
    """

    weighted = True

    def __init__(self, nu: float, iterations: int = ITERATIONS) -> None:
        self.nu, self.iterations = nu, iterations

    def choose(self, updates: Comparison) -> Choice:
        parts = updates.weights / updates.weights.sum()
        for _ in range(self.iterations):
            last = parts
            parts = updates.weights / np.maximum(self.nu, distances_to(parts, updates.gram))
            parts /= parts.sum()
            if np.array_equal(parts, last):
                break
        return Choice(parts, np.ones(updates.n))


def distances_to(parts: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Return the distances of vectors with these inner products to sum_k parts_k x_k."""
    along = gram @ parts
    return np.sqrt(np.maximum(0.0, parts @ along - 2 * along + np.diag(gram)))
