"""Edge servers: the edge of each client, and the cost of an exchange between edge and server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcfed.clients.csv_lines import read_each
from hpcfed.config.edges import Edges
from hpcfed.core.errors import DataError

HEADER = ("client", "edge")


@dataclass(frozen=True)
class EdgeMap:
    """Edge of each client, and network of each edge.

    of: [K], the edge of each client.
    bandwidth: [E], bytes per second.
    latency: [E], virtual seconds of one exchange in addition to its transfer.
    """

    of: np.ndarray
    bandwidth: np.ndarray
    latency: np.ndarray

    @property
    def number(self) -> int:
        """Number of edges."""
        return len(self.bandwidth)

    def transfer(self, e: int, nbytes: float) -> float:
        """Return the virtual seconds of a transfer of `nbytes` bytes between edge e and the
        server.
        """
        return float(nbytes / self.bandwidth[e])

    def split(self, ks: Sequence[int]) -> dict[int, list[int]]:
        """Group these clients by edge: edges in order, clients in the given order."""
        by_edge: dict[int, list[int]] = {}
        for k in ks:
            by_edge.setdefault(int(self.of[k]), []).append(k)
        return dict(sorted(by_edge.items()))


def assign(edges: Edges, clients: int) -> np.ndarray:
    """Return the edge of each client, [K]: from the file, from the list, or modulo the number.

    Raises DataError for a file that cannot be used.
    """
    if edges.file is not None:
        return read(edges.file, clients, edges.number)
    if edges.clients:
        return np.array(edges.clients, np.int32)
    return (np.arange(clients) % edges.number).astype(np.int32)


def make_map(edges: Edges, of: np.ndarray) -> EdgeMap:
    """Make the map of a job's edges from the edge of each client."""
    rates = (np.resize(values, edges.number) for values in (edges.bandwidth, edges.latency))
    return EdgeMap(of, *rates)


def read(path: Path, clients: int, number: int) -> np.ndarray:
    """Read the edge of each client, [K], from a file with one line for each, in any order.

    Raises DataError that names the wrong line and says why.
    """
    of = [e for (e,) in read_each(path, HEADER, "edges.file", clients)]
    for k, e in enumerate(of):
        if e not in range(number):
            raise DataError(
                f"edges.file: {path}: client {k} has edge {e:g}; edges are 0..{number - 1}, as "
                f"edges.number = {number} says"
            )
    return np.array(of, np.int32)
