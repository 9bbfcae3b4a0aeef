"""Which edge server each client has, and what an exchange of an edge with the server takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcfed.clients.csv_lines import read_csv
from hpcfed.config.edges import Edges
from hpcfed.core.errors import DataError

HEADER = ("client", "edge")


@dataclass(frozen=True)
class EdgeMap:
    """of: [K], the edge of each client.

    bandwidth, latency: [E], bytes per second, and virtual seconds of one exchange beside its bytes.
    """

    of: np.ndarray
    bandwidth: np.ndarray
    latency: np.ndarray

    @property
    def number(self) -> int:
        """How many edges there are."""
        return len(self.bandwidth)

    def transfer(self, e: int, nbytes: float) -> float:
        """Virtual seconds that so many bytes take between edge e and the server."""
        return float(nbytes / self.bandwidth[e])

    def split(self, ks: Sequence[int]) -> dict[int, list[int]]:
        """These clients by edge, edges in order and clients in the given order."""
        found: dict[int, list[int]] = {}
        for k in ks:
            found.setdefault(int(self.of[k]), []).append(k)
        return dict(sorted(found.items()))


def assign(edges: Edges, clients: int) -> np.ndarray:
    """The edge of each client, [K]: modulo, as listed, or as the file says. Raises DataError."""
    if edges.file is not None:
        return read(edges.file, clients, edges.number)
    if edges.clients:
        return np.array(edges.clients, np.int32)
    return (np.arange(clients) % edges.number).astype(np.int32)


def make_map(edges: Edges, of: np.ndarray) -> EdgeMap:
    """The edges of a job, with the edge of each client."""
    rates = (np.resize(values, edges.number) for values in (edges.bandwidth, edges.latency))
    return EdgeMap(of, *rates)


def read(path: Path, clients: int, number: int) -> np.ndarray:
    """A file with one line for each client, in any order.

    DataError with the line that is wrong, and why.
    """
    lines = read_csv(path, HEADER, "edges.file")
    rows = dict(parse(path, line, number) for line in lines)
    if len(rows) < len(lines) or sorted(rows) != list(range(clients)):
        raise DataError(
            f"edges.file: {path}: has {len(lines)} lines for {clients} clients; give one line for "
            f"each of the clients 0..{clients - 1}"
        )
    return np.array([rows[k] for k in range(clients)], np.int32)


def parse(path: Path, line: Sequence[str], number: int) -> tuple[int, int]:
    """A client's number and that of its edge."""
    try:
        k, e = map(int, line)
    except ValueError as error:
        raise DataError(
            f"edges.file: {path}: {','.join(line)!r}: write {','.join(HEADER)} as numbers"
        ) from error
    if not 0 <= e < number:
        raise DataError(
            f"edges.file: {path}: client {k} has edge {e}; edges are 0..{number - 1}, as "
            f"edges.number = {number} says"
        )
    return k, e
