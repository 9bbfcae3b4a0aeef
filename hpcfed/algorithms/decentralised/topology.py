"""Graphs of clients for methods without a server, as symmetric matrices."""

import math
from functools import cache
from typing import Literal

import numpy as np

from hpcfed import ConfigError, rng

Topology = Literal["ring", "complete", "star", "torus", "clique-ring", "erdos-renyi", "exponential"]
TRIES = 1000  # draws of a random graph until one is connected


@cache
def graph(
    kind: Topology, n: int, seed: int = 0, cliques: int = 3, density: float = 0.3
) -> np.ndarray:
    """Return a connected graph of n clients, a symmetric bool matrix [n, n] with a false diagonal.

    star: all clients are linked with client 0.
    torus: a grid with rows and columns as equal in number as n allows.
    clique-ring: `cliques` cliques, the last client of each linked with the first of the next.
    erdos-renyi: each pair is linked with probability density, drawn from the seed until the graph
    is connected.
    exponential: client i is linked with i + 1, i + 2, i + 4, ...
    Raises ConfigError if no connected graph is drawn.
    """
    links = erdos_renyi(n, seed, density) if kind == "erdos-renyi" else np.zeros((n, n), dtype=bool)
    for i, j in pairs(kind, n, cliques):
        links[i, j] = links[j, i] = i != j
    links.setflags(write=False)
    return links


def pairs(kind: Topology, n: int, cliques: int) -> list[tuple[int, int]]:
    """Return pairs of linked clients; a pair may occur twice, or be a client and itself."""
    every = range(n)
    if kind == "clique-ring":
        groups = np.array_split(np.arange(n), min(cliques, n))
        inner = [(i, j) for g in groups for i in g.tolist() for j in g.tolist()]
        return inner + [(int(groups[c - 1][-1]), int(g[0])) for c, g in enumerate(groups)]
    if kind == "torus":
        rows = next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0)
        cols = n // rows
        right = [(i, i // cols * cols + (i + 1) % cols) for i in every]
        return right + [(i, (i + cols) % n) for i in every]
    steps = {
        "ring": [1],
        "complete": list(every),
        "exponential": [2**e for e in range(n.bit_length()) if 2**e < n],
    }.get(kind, [])
    return (
        [(0, i) for i in every]
        if kind == "star"
        else [(i, (i + step) % n) for i in every for step in steps]
    )


def erdos_renyi(n: int, seed: int, density: float) -> np.ndarray:
    """Return a random graph, drawn again until it is connected."""
    g = rng.stream(seed, "topology")
    for _ in range(TRIES):
        upper = np.triu(g.random((n, n)) < density, 1)
        if is_connected(upper | upper.T):
            return upper | upper.T
    raise ConfigError(
        f"algorithm.density = {density:g}: none of {TRIES} random graphs of {n} clients is "
        f"connected; "
        f"raise it, to {math.log(max(n, 2)) / n:.2g} at least"
    )


def is_connected(links: np.ndarray) -> bool:
    """Return whether all clients can be reached from client 0."""
    reached = np.zeros(len(links), dtype=bool)
    reached[:1] = True
    for _ in range(len(links)):
        reached |= links[reached].any(0)
    return bool(reached.all())


def among(links: np.ndarray, cohort: list[int]) -> np.ndarray:
    """Return the graph without the links of clients outside the cohort."""
    member = np.isin(np.arange(len(links)), cohort)
    return links & member & member[:, None]
