"""Distances and angles between the clients' updates, as one matrix of inner products.

A rule that compares updates needs nothing else: ||x_i - x_j||^2 = G_ii + G_jj - 2 G_ij, and the
length of sum_k a_k x_k is sqrt(a' G a). The products are exact up to the rounding of each client's
values to 20 bits of its largest one: whole numbers below 2^20, of which 2^12 products are summed in
float64 without error, in any order. So G has the same bits on any machine and number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BITS = 20  # of a value; the sum of 2**COLUMNS products has 2 * BITS + COLUMNS = 52 bits
COLUMNS = 12


@dataclass
class Comparison:
    """What a rule knows of the updates of one mean, or of what each row of it is the mean of.

    gram: [n + j, n + j], inner products of the clients' updates, and of j vectors of the server.
    weights: [n], of the clients in the mean; positive.
    attackers: number of clients that the rule takes for attackers.
    """

    gram: np.ndarray
    weights: np.ndarray
    attackers: int

    @property
    def n(self) -> int:
        """Number of updates."""
        return len(self.weights)

    @property
    def lengths(self) -> np.ndarray:
        """[n], Euclidean lengths of the updates."""
        return np.sqrt(np.maximum(0.0, np.diag(self.gram)[: self.n]))

    @property
    def distances(self) -> np.ndarray:
        """[n, n], squared distances between the updates."""
        return squared_distances(self.gram[: self.n, : self.n])

    @property
    def cosines(self) -> np.ndarray:
        """[n, n], cosines of the angles between the updates; 0 for an update of length 0."""
        lengths = self.lengths
        scale = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        return self.gram[: self.n, : self.n] * scale * scale[:, None]


def squared_distances(gram: np.ndarray) -> np.ndarray:
    """Return the squared distances of vectors with these inner products, 0 on the diagonal."""
    squares = np.diag(gram)
    distances = np.maximum(0.0, squares + squares[:, None] - 2 * gram)
    np.fill_diagonal(distances, 0.0)
    return distances


def exponents(largest: np.ndarray) -> np.ndarray:
    """Return e with |x| < 2^e for the largest magnitudes of vectors."""
    return np.frexp(largest)[1]


def products(values: np.ndarray, exponents: np.ndarray, pairs: bool = True) -> np.ndarray:
    """Return the inner products [n, n] of rounded values [n, m], |values| < 2^exponents.

    The unit of row i is 2^(exponents[i] - BITS).
    pairs: whether those of different vectors are needed; otherwise they are 0.
    """
    whole = np.rint(np.ldexp(values, (BITS - exponents)[:, None]))
    total = np.zeros((len(values), len(values)))
    for start in range(0, values.shape[1], 2**COLUMNS):
        part = whole[:, start : start + 2**COLUMNS]
        total += part @ part.T if pairs else np.diag(np.square(part).sum(axis=1))
    return total


def in_units(products: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Return inner products in the units of the values."""
    return np.ldexp(products, exponents + exponents[:, None] - 2 * BITS)
