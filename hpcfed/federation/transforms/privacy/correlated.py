"""Correlated noise: what one round adds, later rounds take away in part.

The model is a prefix sum of all rounds' sums. With the noise C^-1 z of independent z, prefix sums
have far less noise than with z itself, although one client's sums, seen through C, are as hard to
tell. A client may take part in every b-th round only: the clients are in b groups, client i takes
part in rounds t = i mod b. So its rounds are b apart, and C may have b bands.

Banded: C is a lower triangular Toeplitz matrix with the coefficients c_0 = 1, c_1, ..., c_(b - 1).
The noise of round t is z_t - sum_j c_j noise_(t - j). Kairouz et al., ICML 2021, arXiv:2103.00039;
Choquette-Choo et al., NeurIPS 2023, arXiv:2306.08153 (bands and groups); Fichtenberger, Henzinger
and Upadhyay, ICML 2023, arXiv:2202.11205 (c_j = c_(j - 1) (2 j - 1) / (2 j), without bands).
Tree: the noise of a prefix of t rounds is the sum over the nodes of its binary decomposition, one
tree every b rounds. Dwork et al., STOC 2010.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.optimize import minimize
from scipy.signal import lfilter


def square_root_coefficients(n: int) -> np.ndarray:
    """Return the first n coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, 5/16, ..., float64."""
    j = np.arange(1, n)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def inverse(coefficients: np.ndarray, n: int) -> np.ndarray:
    """Return the first n coefficients of the inverse of a lower triangular Toeplitz matrix."""
    return lfilter([1.0], coefficients, np.eye(1, n)[0])


def mean_error(coefficients: np.ndarray, n: int) -> float:
    """Return the mean over n rounds of the variance of a prefix sum, at equal privacy.

    Independent noise has (n + 1) / 2.
    """
    prefix = lfilter([1.0], coefficients, np.ones(n))  # coefficients of A C^-1
    weights = np.arange(n, 0, -1) / n
    return float(coefficients @ coefficients * (weights @ prefix**2))


@lru_cache(maxsize=8)
def banded_coefficients(bands: int, n: int) -> tuple[float, ...]:
    """Return the coefficients with `bands` bands that have the least mean error over n rounds.

    They are found by a descent that starts at the square root's and has a fixed number of digits,
    so that all ranks have the same.
    """
    bands = min(bands, n)
    if bands == 1:
        return (1.0,)
    weights = np.arange(n, 0, -1) / n

    def error(rest: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the logarithm of the error and its gradient by c_1, c_2, ..."""
        c = np.concatenate([[1.0], rest])
        prefix = lfilter([1.0], c, np.ones(n))
        spread, norm = weights @ prefix**2, c @ c
        slope = lfilter([1.0], c, prefix)  # minus d prefix / d c_j is this, j rounds later
        down = [weights[j:] * prefix[j:] @ slope[: n - j] for j in range(1, bands)]
        return math.log(spread * norm), 2 * rest / norm - 2 * np.array(down) / spread

    start = square_root_coefficients(bands)[1:]
    result = minimize(error, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    best = min(start, result.x, key=lambda rest: error(rest)[0])
    return (1.0, *np.round(best, 10).tolist())


def sensitivity(coefficients: np.ndarray, participations: int = 1) -> float:
    """Return the norm by which one client of norm 1 changes C x.

    participations: at rounds that are as many apart as there are bands.
    """
    return math.sqrt(participations * float(coefficients @ coefficients))


def group(k: int, groups: int) -> int:
    """Return the group of client k; it takes part in rounds t with t mod groups = group."""
    return k % groups


def participations(rounds: int, groups: int) -> int:
    """Return the most rounds in which one client can take part."""
    return -(-rounds // groups)


def tree_height(n: int) -> int:
    """Return the most nodes of a tree over n rounds that contain one round."""
    return n.bit_length()


def tree_nodes(t: int) -> list[tuple[int, int]]:
    """Return the nodes whose sum is the prefix of the first t rounds.

    A node is (level, index): rounds index 2^level..(index + 1) 2^level - 1 of its tree.
    """
    nodes, start = [], 0
    for level in reversed(range(t.bit_length())):
        if t >> level & 1:
            nodes.append((level, start >> level))
            start += 1 << level
    return nodes


def tree_changes(t: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the nodes that round t (from 0, within its tree) adds to the prefix, and removes."""
    before, after = set(tree_nodes(t)), set(tree_nodes(t + 1))
    return sorted(after - before), sorted(before - after)
