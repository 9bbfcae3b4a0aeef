"""Krum, multi-Krum and Bulyan: the updates that lie closest to others.

Blanchard, El Mhamdi, Guerraoui and Stainer, NeurIPS 2017 (Krum, multi-Krum); El Mhamdi, Guerraoui
and Rouault, ICML 2018, arXiv:1802.07927 (Bulyan). The score of a client is the sum of the squared
distances to its n - f - 2 nearest clients, with f attackers among n clients.

- Krum takes the update with the lowest score, for 2 f + 2 < n.
- Multi-Krum takes the mean of the m updates with the lowest scores, m <= n - f - 2.
- Bulyan takes n - 2 f updates, one after the other, each by Krum among those that are left, and of
  each coordinate the mean of the n - 4 f values that are nearest to the median, for n >= 4 f + 3.

Ties go to the client with the lowest id. Clients count alike, whatever their weights.
Deviations from public code: distances are those of complete updates and squared once, as in the
papers (FederatedScope adds lengths tensor by tensor).
"""

from __future__ import annotations

import numpy as np

from hpcfed.federation.transforms.comparison import Comparison
from hpcfed.federation.transforms.defence.rule import Choice, Rule


class MultiKrum(Rule):
    """The mean of the updates with the lowest scores.

    m: their number; None: n - f - 2.
    """

    def __init__(self, m: int | None = None) -> None:
        self.m = m

    def least(self, attackers: int) -> int:
        return 2 * attackers + 3

    def choose(self, updates: Comparison) -> Choice:
        most = max(1, updates.n - updates.attackers - 2)
        order = np.argsort(scores(updates.distances, updates.attackers), kind="stable")
        weights = np.zeros(updates.n)
        weights[order[: min(self.m or most, most)]] = 1.0
        return Choice(weights, np.ones(updates.n))


class Krum(MultiKrum):
    """The update with the lowest score."""

    def __init__(self) -> None:
        super().__init__(1)


class Bulyan(Rule):
    """The values next to the median of updates that Krum chooses."""

    combines = True

    def least(self, attackers: int) -> int:
        return 4 * attackers + 3

    def choose(self, updates: Comparison) -> Choice:
        distances, rest = updates.distances, list(range(updates.n))
        weights = np.zeros(updates.n)
        for _ in range(updates.n - 2 * updates.attackers):
            best = int(scores(distances[np.ix_(rest, rest)], updates.attackers).argmin())
            weights[rest.pop(best)] = 1.0
        return Choice(weights, np.ones(updates.n))

    def combine(self, values: np.ndarray, weights: np.ndarray, attackers: np.ndarray) -> np.ndarray:
        values = values[weights[:, 0] > 0]
        nearest = max(1, len(values) - 2 * int(attackers[0]))
        columns = np.ascontiguousarray(values.T)
        apart = np.abs(columns - np.median(columns, axis=1, keepdims=True))
        order = np.argsort(apart, axis=1, kind="stable")[:, :nearest]
        return np.take_along_axis(columns, order, axis=1).mean(axis=1)


def scores(distances: np.ndarray, attackers: int) -> np.ndarray:
    """Return the sum of the squared distances of each client to its nearest ones, [n]."""
    n = len(distances)
    others = distances[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    return np.sort(others, axis=1)[:, : max(1, n - attackers - 2)].sum(axis=1)
