"""The graph of a secure sum: with which clients each client shares masks and secrets.

SecAgg joins every client with every other one. SecAgg+ joins it with few, by a Harary graph on a
random order of the clients: each is joined with the next ones on both sides of a ring. Bell et al.,
CCS 2020 (IACR 2020/704), sec. 3.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol

import numpy as np


class Graph(Protocol):
    """Neighbours of clients; the same on all ranks."""

    def neighbours(self, k: int) -> Sequence[int]:
        """Return the neighbours of client k, in id order."""

    def count(self, k: int, clients: Set[int]) -> int:
        """Return how many of these clients are neighbours of client k."""


class Complete:
    """Every client is joined with every other one."""

    def __init__(self, clients: Sequence[int]) -> None:
        self.clients = clients

    def neighbours(self, k: int) -> list[int]:
        return [j for j in self.clients if j != k]

    def count(self, k: int, clients: Set[int]) -> int:
        return len(clients) - (k in clients)


class Harary:
    """Every client is joined with the next ones on both sides of a ring in random order.

    degree: neighbours of each client, 2 at least and as far as there are others. An odd number
    needs an even number of clients; otherwise it is one more.
    g: draws the order.
    """

    def __init__(self, clients: Sequence[int], degree: int, g: np.random.Generator) -> None:
        n = len(clients)
        ring = [int(clients[i]) for i in g.permutation(n)]
        if degree >= n - 1:
            steps = set(range(1, n // 2 + 1))
        else:
            steps = set(range(1, degree // 2 + 1))
            if degree % 2:
                steps.add(degree // 2 + 1 if n % 2 else n // 2)
        offsets = {direction * step for step in steps for direction in (1, -1)}
        self._neighbours = {
            k: sorted({ring[(i + offset) % n] for offset in offsets} - {k})
            for i, k in enumerate(ring)
        }

    def neighbours(self, k: int) -> list[int]:
        return self._neighbours[k]

    def count(self, k: int, clients: Set[int]) -> int:
        return sum(j in clients for j in self._neighbours[k])


def default_degree(n: int) -> int:
    """Return 2 ceil(log2 n), the default number of neighbours among n clients."""
    return max(2, 2 * max(n - 1, 0).bit_length())
