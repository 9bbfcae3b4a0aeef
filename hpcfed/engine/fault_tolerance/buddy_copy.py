"""Buddy copies: each rank's state is kept in its own memory and in that of another rank.

A copy is made after every round, so that the death of a rank repeats no round. On each rank the
state of its clients takes memory three times, and for a moment after a round once more for what the
round has changed. Only changes are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.comm import codec
from hpcfed.engine.fault_tolerance import snapshot

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.engine.rounds import Rounds
    from hpcfed.federation.federation import Federation

Items = dict[str, np.ndarray]  # what a checkpoint holds, by name, each encoded: [bytes], uint8


@dataclass(frozen=True)
class Copy:
    """The copies that one rank keeps of the run after a round."""

    number: int  # of the copy, the same on all ranks
    rounds: int
    rank: int  # number, at that time, of the rank that keeps it
    size: int
    step: int  # the part of rank r is also kept by rank r + step
    part: Items  # of this rank
    ward: Items  # of rank - step


class BuddyCopy:
    """The copies that this rank keeps.

    These are the newest copy, and the one before it until all ranks have the newest.
    """

    def __init__(self) -> None:
        self.copies: list[Copy] = []

    def take(self, rounds: Rounds, rows: dict[str, Any]) -> None:
        """Copy the run in its present state; collective.

        rows: records of the results that only rank 0 has.
        """
        comm = rounds.fed.comm
        if comm.size == 1:
            return  # there is no other rank
        with rounds.fed.clock("checkpoint"):
            self.copies.append(self.make_copy(rounds, rows))
            comm.confirm()  # from now on no rank needs an earlier copy
        self.copies = self.copies[-1:]

    def make_copy(self, rounds: Rounds, rows: dict[str, Any]) -> Copy:
        """Return a copy of this rank's part of the run.

        Items that have not changed since the last copy are shared with it.
        """
        comm, number = rounds.fed.comm, self.copies[-1].number + 1 if self.copies else 0
        step = stride(comm.node_of)
        old = self.copies[-1] if self.copies else None
        # after a death everything is copied anew
        part, ward = (old.part, old.ward) if old and old.size == comm.size else ({}, {})
        new = {
            name: np.frombuffer(codec.encode(item), np.uint8)
            for name, item in snapshot.items(rounds)
        }
        new |= {"rows": np.frombuffer(codec.encode(rows), np.uint8)} if comm.rank == 0 else {}
        new = {
            name: part[name] if np.array_equal(part.get(name), item) else item  # type: ignore[arg-type]  # nothing equals no array
            for name, item in new.items()
        }
        changed = {name: item for name, item in new.items() if item is not part.get(name)}
        return Copy(
            number,
            rounds.t,
            comm.rank,
            comm.size,
            step,
            new,
            pass_on(comm, step, new, changed, ward),
        )

    def restore(self, fed: Federation) -> snapshot.Snapshot | None:
        """Return the newest copy that all ranks have, with this rank's items.

        Items are distributed to the ranks that continue. Collective, after a shrink. Returns None
        if the copy is incomplete, because two ranks that kept one another's copies died, or if
        nothing was copied yet.
        """
        newest = fed.comm.gather({fed.comm.rank: self.copies[-1].number if self.copies else -1})
        fed.comm.confirm()
        self.copies = [copy for copy in self.copies if copy.number == min(newest.values())]
        available = available_items(fed.comm, self.copies[0]) if self.copies else None
        items = None if available is None else distribute(fed, available)
        fed.comm.confirm()
        if items is None:
            self.copies = []
            return None
        return snapshot.Snapshot({"job": fed.job.identity()}, self.copies[0].rounds, items)


def available_items(comm: Comm, copy: Copy) -> Items | None:
    """Return the items that this rank can provide: its own, and those of its ward if that died.

    The ward is the rank whose copy this rank keeps. Returns None if some rank's items are lost.
    """
    dead = set(range(copy.size)) - set(comm.gather({comm.rank: copy.rank}).values())
    if any((rank + copy.step) % copy.size in dead for rank in dead):
        return None
    return copy.part | (copy.ward if (copy.rank - copy.step) % copy.size in dead else {})


def stride(node_of: Sequence[int]) -> int:
    """Return the step from each rank to the rank that keeps its copy.

    The smallest step that always leads to another node, or 1 if there is none.
    """
    size = len(node_of)
    apart = (
        s for s in range(1, size) if all(node_of[r] != node_of[(r + s) % size] for r in range(size))
    )
    return next(apart, 1)


def pass_on(comm: Comm, step: int, new: Items, changed: Items, ward: Items) -> Items:
    """Return the items of rank - step; collective.

    Changed items are received from that rank; the others are in `ward`.
    """
    lists = comm.gather({comm.rank: [[*new], [*changed]]})
    come: Items = {}
    # alternating order, so that pairs do not wait for each other
    for src in sorted(lists, key=lambda rank: rank // step % 2):
        for name in lists[src][1]:
            item = comm.move(changed.get(name), src, (src + step) % comm.size)
            come |= {} if item is None else {name: item}
    names, _ = lists[(comm.rank - step) % comm.size]
    return {name: come[name] if name in come else ward[name] for name in names}


def distribute(fed: Federation, available: Items) -> dict[str, Any]:
    """Return each client's item on the client's rank, and all others on every rank; collective.

    Items are decoded.
    """
    comm = fed.comm
    items: dict[str, Any] = {}
    for rank, names in comm.gather({comm.rank: [*available]}).items():
        for name in names:
            k = int(name.removeprefix("clients/")) if name.startswith("clients/") else None
            to = 0 if k == fed.K else k if k is None else fed.placement.ranks[k]
            item = (
                comm.bcast(available.get(name), rank)
                if to is None
                else comm.move(available.get(name), rank, to)
            )
            items |= {} if item is None else {name: codec.decode(item.tobytes())}
    return items
