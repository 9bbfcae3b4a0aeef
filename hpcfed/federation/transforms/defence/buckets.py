"""Bucketing: clients are averaged in random groups before a rule sees them.

Karimireddy, He and Jaggi, ICLR 2022, arXiv:2006.09365. Averages of s clients differ less from one
another than the clients do, so that a rule takes fewer honest ones for attackers; but with f
attackers up to f of n / s groups are bad.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcfed.federation.transforms.comparison import Comparison
from hpcfed.federation.transforms.defence.rule import Choice


class Buckets:
    """Groups of the clients of a mean.

    groups: [n], the group of each client.
    """

    def __init__(self, n: int, size: int, g: np.random.Generator) -> None:
        """size: of a group; the last one may be smaller.  With size 1 clients stay in order."""
        self.n = -(-n // size)
        self.groups = np.arange(n)
        if size > 1:
            self.groups[g.permutation(n)] = np.arange(n) // size
        self.single = size == 1

    def shares(self, weights: np.ndarray, entries: list[int]) -> np.ndarray:
        """Return each client's share in its group: [b, n], or [b, n, m] for weights [n, m].

        weights: of these clients.  Groups whose weights sum to 0 get shares of 0.
        """
        member = self.groups[entries] == np.arange(self.n)[:, None]
        weights = member.reshape(*member.shape, *[1] * (weights.ndim - 1)) * weights
        total = weights.sum(axis=1, keepdims=True)
        return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)

    def compare(self, updates: Comparison) -> Comparison:
        """Return the comparison of the groups' averages."""
        if self.single:
            return updates
        shares = self.shares(updates.weights, list(range(updates.n)))
        others = len(updates.gram) - updates.n
        complete = np.block(
            [
                [shares, np.zeros((self.n, others))],
                [np.zeros((others, updates.n)), np.eye(others)],
            ]
        )
        return replace(
            updates,
            gram=complete @ updates.gram @ complete.T,
            weights=np.bincount(self.groups, updates.weights, self.n),
        )

    def spread(self, choice: Choice, weights: np.ndarray) -> Choice:
        """Return what a choice among groups means for their clients.  weights: of these, [n]."""
        if self.single:
            return choice
        shares = self.shares(weights, list(range(len(weights)))).sum(axis=0)
        return choice._replace(
            weights=choice.weights[self.groups] * shares, factors=choice.factors[self.groups]
        )

    def average(
        self, values: np.ndarray, weights: np.ndarray, entries: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the groups' averages of values [n, m] and their weights, [b, m] each."""
        if self.single:
            return values, weights
        shares = self.shares(weights, entries)
        averages = np.stack([(share * values).sum(axis=0) for share in shares])
        return averages, np.stack(
            [weights[self.groups[entries] == b].sum(axis=0) for b in range(self.n)]
        )
