"""The graph of a secure sum: with which clients each client shares masks and secrets.

SecAgg joins every client with every other one, SecAgg+ with few: a Harary graph, in which each node
of a ring is joined with its nearest ones on both sides, on a random order of the clients.
Bell et al., CCS 2020, arXiv: none (IACR 2020/704), sec. 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def complete(clients: Sequence[int]) -> dict[int, list[int]]:
    """Return all other clients as the neighbours of each client."""
    return {k: [j for j in clients if j != k] for k in clients}


def harary(clients: Sequence[int], degree: int, g: np.random.Generator) -> dict[int, list[int]]:
    """Return the neighbours of each client, in id order.

    degree: of each node, as far as there are others; an odd one needs an even number of clients,
    and is otherwise one more.
    """
    n = len(clients)
    if degree >= n - 1:
        return complete(clients)
    ring = [int(clients[i]) for i in g.permutation(n)]
    steps = list(range(1, degree // 2 + 1))
    if degree % 2:
        steps.append(n // 2 if n % 2 == 0 else degree // 2 + 1)
    offsets = {sign * step for step in steps for sign in (1, -1)}
    return {k: sorted({ring[(i + offset) % n] for offset in offsets}) for i, k in enumerate(ring)}


def default_degree(n: int) -> int:
    """Return 2 ceil(log2 n), the default number of neighbours among n clients."""
    return 2 * max(n - 1, 0).bit_length()
