"""Copies of what each rank holds, in its own memory and in that of another rank: a death then
repeats no round.

A copy is made after every round. What a rank's clients keep so takes memory three times on each
rank, and for a moment after a round once more what the round has changed; only that travels.
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
    """A run after some round, as far as one rank keeps it."""

    number: int  # of the copy, the same on all ranks
    rounds: int
    rank: int  # that of the one who keeps it, then
    size: int
    step: int  # the part of rank r is also kept by rank r + step
    own: Items
    ward: Items  # of rank - step


class BuddyCopy:
    """The copies that this rank keeps: the newest, and the one before until all ranks have the
    newest.
    """

    def __init__(self) -> None:
        self.kept: list[Copy] = []

    def take(self, rounds: Rounds, rows: dict[str, Any]) -> None:
        """Copy the run as it is now; collective. rows: what only rank 0 knows, of the results."""
        comm = rounds.fed.comm
        if comm.size == 1:
            return  # nobody to outlive it
        with rounds.fed.clock("checkpoint"):
            self.kept.append(self.make_copy(rounds, rows))
            comm.confirm()  # nobody returns to a copy before this one from now on
        self.kept = self.kept[-1:]

    def make_copy(self, rounds: Rounds, rows: dict[str, Any]) -> Copy:
        """A copy of this rank's part of the run.

        What has not changed since the last one is shared with it.
        """
        comm, number = rounds.fed.comm, self.kept[-1].number + 1 if self.kept else 0
        step = stride(comm.node_of)
        old = self.kept[-1] if self.kept else None
        own, ward = (
            (old.own, old.ward) if old and old.size == comm.size else ({}, {})
        )  # since a death all is new
        new = {
            name: np.frombuffer(codec.encode(item), np.uint8)
            for name, item in snapshot.items(rounds)
        }
        new |= {"rows": np.frombuffer(codec.encode(rows), np.uint8)} if comm.rank == 0 else {}
        new = {
            name: own[name] if np.array_equal(own.get(name), item) else item  # type: ignore[arg-type]  # nothing equals no array
            for name, item in new.items()
        }
        changed = {name: item for name, item in new.items() if item is not own.get(name)}
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
        """The newest copy that all ranks have, on the ranks that are to go on with it.

        Collective, after a shrink.

        None where it is not whole: two that had one another's died, or nothing was copied yet.
        """
        newest = fed.comm.gather({fed.comm.rank: self.kept[-1].number if self.kept else -1})
        fed.comm.confirm()
        self.kept = [copy for copy in self.kept if copy.number == min(newest.values())]
        held = available_items(fed.comm, self.kept[0]) if self.kept else None
        items = None if held is None else distribute(fed, held)
        fed.comm.confirm()
        if items is None:
            self.kept = []
            return None
        return snapshot.Snapshot({"job": fed.job.identity()}, self.kept[0].rounds, items)


def available_items(comm: Comm, copy: Copy) -> Items | None:
    """What this rank has to give: its own part, and that of its ward if that died; None if a part
    is lost.
    """
    dead = set(range(copy.size)) - set(comm.gather({comm.rank: copy.rank}).values())
    if any((rank + copy.step) % copy.size in dead for rank in dead):
        return None
    return copy.own | (copy.ward if (copy.rank - copy.step) % copy.size in dead else {})


def stride(node_of: Sequence[int]) -> int:
    """The step from a rank to the one that keeps its copy: to another node, if there is a step that
    always does.
    """
    size = len(node_of)
    apart = (
        s for s in range(1, size) if all(node_of[r] != node_of[(r + s) % size] for r in range(size))
    )
    return next(apart, 1)


def pass_on(comm: Comm, step: int, new: Items, changed: Items, ward: Items) -> Items:
    """The part of rank - step: what it has changed comes from there, the rest is in `ward`;
    collective.
    """
    told = comm.gather({comm.rank: [[*new], [*changed]]})
    come: Items = {}
    for src in sorted(
        told, key=lambda rank: rank // step % 2
    ):  # who sends first receives later: pairs do not wait
        for name in told[src][1]:
            item = comm.move(changed.get(name), src, (src + step) % comm.size)
            come |= {} if item is None else {name: item}
    names, _ = told[(comm.rank - step) % comm.size]
    return {name: come[name] if name in come else ward[name] for name in names}


def distribute(fed: Federation, held: Items) -> dict[str, Any]:
    """Each client's item on the client's rank, all else on every rank, decoded; collective."""
    comm = fed.comm
    items: dict[str, Any] = {}
    for rank, names in comm.gather({comm.rank: [*held]}).items():
        for name in names:
            k = int(name.removeprefix("clients/")) if name.startswith("clients/") else None
            to = 0 if k == fed.K else k if k is None else fed.placement.ranks[k]
            item = (
                comm.bcast(held.get(name), rank)
                if to is None
                else comm.move(held.get(name), rank, to)
            )
            items |= {} if item is None else {name: codec.decode(item.tobytes())}
    return items
