"""Distances and angles between the clients' updates, as one matrix of inner products.

A rule that compares updates needs nothing else: ||x_i - x_j||^2 = G_ii + G_jj - 2 G_ij, and the
length of sum_k a_k x_k is sqrt(a' G a). The products are exact up to the rounding of each client's
values to 20 bits of its largest one: whole numbers below 2^20, of which 2^12 products are summed in
float64 without error, in any order. So G has the same bits on any machine and number of ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcfed.core.params import Params, Term
from hpcfed.federation.side_by_side import Block, SideBySide

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation

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


def products(
    values: np.ndarray, exponents: np.ndarray, pairs: bool = True, server: int = 0
) -> np.ndarray:
    """Return the inner products [n, n] of rounded values [n, m], |values| < 2^exponents.

    The unit of row i is 2^(exponents[i] - BITS).
    pairs: whether those of different clients are needed; otherwise they are 0.
    server: how many of the vectors, the last ones, are the server's.
    """
    integers = np.rint(np.ldexp(values, (BITS - exponents)[:, None]))
    total = np.zeros((len(values), len(values)))
    for start in range(0, values.shape[1], 2**COLUMNS):
        part = integers[:, start : start + 2**COLUMNS]
        if pairs:
            total += part @ part.T
            continue
        clients = slice(len(part) - server)
        total[clients, clients] += np.diag(np.square(part[clients]).sum(axis=1))
        if server:
            with_server = part @ part[-server:].T
            total[:, -server:] += with_server
            total[-server:, clients] += with_server[clients].T
    return total


def in_units(products: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Return inner products in the units of the values."""
    return np.ldexp(products, exponents + exponents[:, None] - 2 * BITS)


def gram(
    fed: Federation,
    values: SideBySide,
    entries: Sequence[int],
    names: Collection[str],
    old: Params | None = None,
    server: Sequence[Params] = (),
    pairs: bool = True,
) -> np.ndarray:
    """Return the inner products of clients' vectors, and of vectors of the server; collective.

    entries: of the clients, among those of `values`. What a client has not counts as 0.
    names: of the tensors that make the vectors.
    old: what is subtracted from the clients' values; None: nothing.
    pairs: whether products of different clients' vectors are needed; otherwise they are 0.
    """
    before = None if old is None else {name: finite(old[name]) for name in names}
    largest_by_entry = fed.comm.gather(
        {
            entry: max((largest(term, name, before) for name in names), default=0.0)
            for entry, term in values.mine.items()
            if entry in entries
        }
    )
    of_server = [max(float(v[name].abs().max()) for name in names) for v in server]
    bits = exponents(np.array([*(largest_by_entry[entry] for entry in entries), *of_server]))

    position = {entry: i for i, entry in enumerate(entries)}

    def multiply(block: Block) -> np.ndarray:
        name, start, stop = block.section
        clients = block.values if old is None else block.values - host(old[name], start, stop)
        values = np.zeros((len(bits), stop - start))
        for row, entry in zip(clients, block.entries, strict=True):
            values[position[entry]] = row
        for i, vector in enumerate(server, len(entries)):
            values[i] = host(vector[name], start, stop)
        return products(values, bits, pairs, len(server))

    total = np.zeros((len(bits),) * 2)
    for _, part in values.each(multiply, lambda name: name in names):
        total += part
    return in_units(total, bits)


def largest(term: Term, name: str, old: Mapping[str, torch.Tensor] | None) -> float:
    """Return the largest magnitude of a tensor of a term, less the old value."""
    if name not in term.value or not term.value[name].numel():
        return 0.0
    value = finite(term.value[name])
    return float((value if old is None else value - old[name]).abs().max())


def host(value: torch.Tensor, start: int = 0, stop: int | None = None) -> np.ndarray:
    """Return values start..stop - 1 of a tensor in flat order, float64, 0 for nan and infinity."""
    return finite(value.reshape(-1)[start:stop]).cpu().numpy()


def finite(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64, with 0 in the place of values that are not finite."""
    return torch.nan_to_num(value.detach().double(), posinf=0.0, neginf=0.0)
