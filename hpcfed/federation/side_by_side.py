"""The values of all clients in a mean, side by side, for attacks and defences that compare them.

No rank holds all of them. The tensors of the mean are cut into sections, and sections are joined
to parcels of about `PARCEL` values. Rank i mod R gets what all clients have of parcel i, computes
with it, and sends the results to all ranks. Sections do not depend on the ranks, so that results
have the same bits on any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch

from hpcfed.core.averaging import zero_pad_tensor
from hpcfed.core.params import Params, Per, Term

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation

T = TypeVar("T")
PARCEL = 2**16  # values


class Section(NamedTuple):
    """The values start..stop - 1 of a tensor in flat order: complete rows, if rows have weights."""

    name: str
    start: int
    stop: int


class Block(NamedTuple):
    """What clients have of a section.

    entries: positions, among all entries, of those that have some of it.
    values: [n, m] float64; 0 where an entry has none.
    weights: [n, m] float64; 0 where an entry has none.
    """

    section: Section
    entries: list[int]
    values: np.ndarray
    weights: np.ndarray


class SideBySide:
    """The terms of one mean.

    clients: of all entries, by id; the same on all ranks.
    mine: this rank's terms by entry.
    """

    def __init__(
        self, fed: Federation, terms: Sequence[tuple[int, Term]], keep: Params, per: Per
    ) -> None:
        """Collective.  terms: of this rank, with the clients' ids."""
        self._fed, self._keep, self._per = fed, keep, per
        by_rank = fed.comm.gather({fed.comm.rank: [k for k, _ in terms]})
        order = sorted((k, rank, j) for rank, ks in by_rank.items() for j, k in enumerate(ks))
        self.clients = [k for k, _, _ in order]
        self.mine = {
            entry: terms[j][1] for entry, (_, rank, j) in enumerate(order) if rank == fed.comm.rank
        }

    def each(
        self, compute: Callable[[Block], T], only: Callable[[str], bool] = lambda name: True
    ) -> Iterator[tuple[Section, T]]:
        """Iterate over all sections and the results of their blocks, on all ranks; collective.

        compute: block -> a value that can be sent.  only: the tensors that are needed, by name.
        """
        comm, clock = self._fed.comm, self._fed.clock
        sections = [s for s in sections_of(self._keep, self._per) if only(s.name)]
        parcels = list(in_parcels(sections))
        cutters = {e: Cutter(term, self._keep) for e, term in self.mine.items()}
        for start in range(0, len(parcels), comm.size):
            batch, received = parcels[start : start + comm.size], dict[int, list]()
            with clock("communicate"):
                for owner, parcel in enumerate(batch):
                    parts = {e: [c.cut(section) for section in parcel] for e, c in cutters.items()}
                    for source in range(comm.size):
                        part = comm.move(parts, source, owner)
                        if comm.rank == owner:
                            received |= part or {}
            with clock.rest("server"):
                results: dict[int, list[T]] = {}
                if comm.rank < len(batch):
                    blocks = blocks_of(batch[comm.rank], received)
                    results = {comm.rank: [compute(block) for block in blocks]}
            with clock("communicate"):
                by_owner = comm.gather(results)
            for owner, parcel in enumerate(batch):
                yield from zip(parcel, by_owner[owner], strict=True)


def sections_of(keep: Params, per: Per) -> Iterator[Section]:
    """Iterate over the sections of the tensors of a mean, at most `PARCEL` values or one row."""
    for name, value in keep.items():
        n = value.numel()
        row = math.prod(value.shape[1:]) if per == "row" else 1
        step = max(1, PARCEL // max(1, row)) * max(1, row)
        for start in range(0, n, step):
            yield Section(name, start, min(start + step, n))


def in_parcels(sections: Sequence[Section]) -> Iterator[list[Section]]:
    """Join sections to lists of at most `PARCEL` values, or of one section."""
    parcel: list[Section] = []
    size = 0
    for section in sections:
        length = section.stop - section.start
        if parcel and size + length > PARCEL:
            yield parcel
            parcel, size = [], 0
        parcel.append(section)
        size += length
    if parcel:
        yield parcel


class Cutter:
    """Cuts sections out of the tensors of a term; they are cut in the order of the tensors."""

    def __init__(self, term: Term, keep: Params) -> None:
        self._term, self._keep = term, keep
        self._name, self._flat = "", (np.zeros(0), np.zeros(0))

    def cut(self, section: Section) -> tuple[np.ndarray, np.ndarray] | None:
        """Return values and weights of a section: [m], and [m] or [1]; None if there are none."""
        if section.name not in self._term.value:
            return None
        if section.name != self._name:
            self._name, self._flat = section.name, flat(self._term, self._keep, section.name)
        values, weights = self._flat
        part = slice(section.start, section.stop)
        return values[part], weights if weights.size == 1 else weights[part]


def flat(term: Term, keep: Params, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return values and weights of a tensor of a term in flat order, in the mean's shape."""
    value, shape, axes = term.value[name].detach(), tuple(keep[name].shape), term.at.get(name, ())
    if not isinstance(term.weight, Params) and not len(axes):
        return host(value), np.array([float(term.weight)])
    weight = term.weight[name] if isinstance(term.weight, Params) else term.weight
    weight = torch.as_tensor(weight, dtype=torch.float64, device=value.device)
    weight = zero_pad_tensor(weight.expand(value.shape).contiguous(), shape, axes)
    return host(zero_pad_tensor(value, shape, axes)), host(weight)


def host(value: torch.Tensor) -> np.ndarray:
    """Return the values of a tensor in flat order on the host, in a type that NumPy has."""
    value = value.float() if value.dtype == torch.bfloat16 else value
    return value.cpu().reshape(-1).numpy()


def blocks_of(
    parcel: Sequence[Section], parts: Mapping[int, Sequence[tuple[np.ndarray, np.ndarray] | None]]
) -> Iterator[Block]:
    """Iterate over the blocks of a parcel.  parts: of each entry, by section."""
    for i, section in enumerate(parcel):
        pairs = {e: part for e in sorted(parts) if (part := parts[e][i]) and part[1].any()}
        n, m = len(pairs), section.stop - section.start
        values, weights = np.zeros((n, m)), np.zeros((n, m))
        for row, (value, weight) in enumerate(pairs.values()):
            weights[row] = weight
            np.copyto(values[row], value, where=weights[row] > 0)
        yield Block(section, list(pairs), values, weights)
