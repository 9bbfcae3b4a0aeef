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
from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.clients.selection import count_groups
from hpcfed.federation.transforms.privacy.account import Account
from hpcfed.federation.transforms.privacy.central import CentralMean
from hpcfed.federation.transforms.privacy.noise import gaussian

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation

Section = tuple[int, int, int, int]  # of a total: call, array, flat position, length


def square_root_coefficients(n: int) -> np.ndarray:
    """Return the first n coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, 5/16, ..., float64."""
    j = np.arange(1, n)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def quotient(coefficients: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return C^-1 x of a lower triangular Toeplitz matrix C with these coefficients."""
    from scipy.signal import lfilter  # here: runs without noise do not load scipy

    return lfilter([1.0], coefficients, x)


def inverse(coefficients: np.ndarray, n: int) -> np.ndarray:
    """Return the first n coefficients of the inverse of a lower triangular Toeplitz matrix."""
    return quotient(coefficients, np.eye(1, n)[0])


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
        prefix = quotient(c, np.ones(n))
        spread, norm = weights @ prefix**2, c @ c
        slope = quotient(c, prefix)  # minus d prefix / d c_j is this, j rounds later
        down = [weights[j:] * prefix[j:] @ slope[: n - j] for j in range(1, bands)]
        return math.log(spread * norm), 2 * rest / norm - 2 * np.array(down) / spread

    from scipy.optimize import minimize  # here: runs without noise do not load scipy

    start = square_root_coefficients(bands)[1:]
    result = minimize(error, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    best = min(start, result.x, key=lambda rest: error(rest)[0])
    return (1.0, *np.round(best, 10).tolist())


def sensitivity(coefficients: np.ndarray, participations: int = 1) -> float:
    """Return the norm by which one client of norm 1 changes C x.

    participations: at rounds that are as many apart as there are bands.
    """
    return math.sqrt(participations * float(coefficients @ coefficients))


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


class CorrelatedMean(CentralMean):
    """The mean with noise that is correlated over rounds.

    The multiplier z counts for one participation: noise of standard deviation z C times the norm of
    a column of C, or of a round's path through a tree. So z costs the same with any matrix, and
    with one group the noise is that of `CentralMean`.

    It has no state: noise of earlier rounds is a function of its round, and what a resumed run
    lacks is computed again.
    noises: of the latest rounds, by section and round.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job.privacy, True)
        self.groups = count_groups(job.selection, job.participation)
        self.coefficients = banded_coefficients(self.groups, job.rounds)
        self.noises: dict[Section, dict[int, np.ndarray]] = {}

    def fresh(self) -> CentralMean:
        rule = super().fresh()
        assert isinstance(rule, CorrelatedMean)
        rule.noises = {}
        return rule

    def noise(self, fed: Federation, i: int, start: int, n: int) -> np.ndarray:
        section = self.call, i, start, n
        if self.privacy.kind == "tree":
            return self.tree_noise(fed.seed, fed.t, section)
        return self.banded_noise(fed.seed, fed.t, section)

    def banded_noise(self, seed: int, t: int, section: Section) -> np.ndarray:
        """Return the noise of a section in round t, of multiplier 1."""
        c, latest = self.coefficients, self.noises.setdefault(section, {})
        for s in [s for s in latest if s > t]:  # of rounds that are repeated
            del latest[s]
        if t not in latest and not all(s in latest for s in range(max(0, t - len(c) + 1), t)):
            latest.clear()
        call, i, start, n = section
        for s in range(max(latest, default=-1) + 1, t + 1):
            noise = gaussian(seed, "privacy", s, call, i, start=start, n=n)
            for j in range(1, min(s + 1, len(c))):
                noise -= c[j] * latest[s - j]
            latest[s] = noise
            latest.pop(s - len(c), None)
        return latest[t] * sensitivity(np.array(c))

    def tree_noise(self, seed: int, t: int, section: Section) -> np.ndarray:
        """Return the noise of a section in round t, of multiplier 1."""
        call, i, start, n = section
        tree, step = divmod(t, self.groups)
        noise = np.zeros(n)
        for sign, nodes in zip((1, -1), tree_changes(step), strict=True):
            for level, index in nodes:
                key = "privacy", "node", tree, level, index, call, i
                noise += sign * gaussian(seed, *key, start=start, n=n)
        return noise * math.sqrt(tree_height(self.groups))


class CorrelatedAccount(Account):
    """The account of correlated noise: a client's releases are the rounds in which it is its turn.

    rounds_done: number of rounds that are over.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.groups = count_groups(job.selection, job.participation)
        # a tree hides one participation, sampled or not
        sampled = job.privacy.kind == "banded"
        self.q = min(1.0, self.groups * job.participation) if sampled else 1.0
        self.rounds_done = 0

    def most_releases(self, turns: int) -> int:
        return participations(turns, self.groups)

    def note(self, comm: Comm, cohort: Collection[int], each: int) -> None:
        self.ledger.add(self.z, self.q, each if self.begins_cycle else 0)
        self.rounds_done += 1

    @property
    def begins_cycle(self) -> bool:
        """Whether the next round is the first group's turn, after which a client has had more."""
        return self.rounds_done % self.groups == 0

    def cost(self, more: int) -> float:
        return super().cost(more if self.begins_cycle else 0)

    def _cohorts(self) -> str:
        turns = f"{self.groups} groups of clients take turns"
        return turns if self.q == 1 else f"{turns}; {super()._cohorts()}"

    def to_tree(self) -> dict[str, Any]:
        return super().to_tree() | {"rounds_done": self.rounds_done}

    def from_tree(self, tree: dict[str, Any]) -> None:
        super().from_tree(tree)
        self.rounds_done = int(tree["rounds_done"])
