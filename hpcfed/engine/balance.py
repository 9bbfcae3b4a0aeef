"""Measured costs of clients, and the moves between ranks that shorten rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfed.machine.assignment import makespan, place

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation

# clients are moved only if that shortens a round by more than this factor; one of two ranks may
# wait for up to twice that share of a round
WORTH = 1.02


def better(costs: Sequence[float], placement: list[int], speeds: Sequence[float]) -> list[int]:
    """Return a placement for these costs, or the present one if a new one does not pay.

    costs: [K].  placement: [K], the rank of each client.  speeds: [R].
    """
    new = place(costs, len(speeds), speeds)
    return (
        new
        if makespan(costs, placement, speeds) >= WORTH * makespan(costs, new, speeds)
        else placement
    )


def level(costs: Sequence[float], placement: Sequence[int], speeds: Sequence[float]) -> list[int]:
    """Return a placement of about equal load on all ranks, by few moves of clients.

    Each move takes one client from the rank with the longest time to the rank with the shortest,
    and picks the client that brings their times closest together. It stops when the slowest rank
    takes at most WORTH times the average.

    costs, placement: of the clients of one round.  speeds: of all ranks, [R]. Clients without a
    state move without a message, so that the ranks of a round do not depend on the cohort that was
    drawn.
    """
    cost, placed = np.array(costs, dtype=float), np.array(placement, dtype=int)
    fast = np.array(speeds, dtype=float)
    loads = np.bincount(placed, cost, len(fast))
    while (loads / fast).max() > WORTH * loads.sum() / fast.sum():
        top, low = int((loads / fast).argmax()), int((loads / fast).argmin())
        mine, gap = np.flatnonzero(placed == top), loads[top] / fast[top] * fast[low] - loads[low]
        best = mine[np.abs(cost[mine] - gap * fast[top] / (fast[top] + fast[low])).argmin()]
        # such a client would only move back and forth, because of rounding
        if not 0 < cost[best] < 0.999 * gap:
            break
        placed[best] = low
        loads[[top, low]] = [cost[placed == rank].sum() for rank in (top, low)]
    return placed.tolist()


def move(fed: Federation, to: Mapping[int, int]) -> None:
    """Move these clients to their new ranks; collective.

    to: new rank by client. A client without a state moves without a message.
    """
    placement = fed.placement
    moves = {k: rank for k, rank in to.items() if rank != placement.ranks[k]}
    if not moves:
        return
    full = fed.comm.gather({k: 1 for k in moves if k in fed.clients and placement.has_parcel(k)})
    for k, rank in moves.items():
        if k in full:
            placement.move(k, placement.ranks[k], rank)
        placement.ranks[k] = rank


class Balance:
    """Measured training times of clients, and moves of clients that make rounds shorter.

    seconds: [K], training seconds per example on a rank of speed 1; nan: not measured yet.
    kinds: the architectures of all clients.
    """

    def __init__(self, fed: Federation) -> None:
        self.fed = fed
        self.seconds, self.kinds = np.full(fed.K, np.nan), {*fed.architectures}
        self._rates: dict[str, float] = {}  # architecture -> last measured seconds per example

    def measure(self, ids: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        """Store the training times of a round.

        ids: the clients of the round's record, [n].  columns: that record's columns, [n] each.
        """
        trained, placement = columns["examples"] > 0, self.fed.placement
        fast = np.array([placement.speeds[placement.ranks[k]] for k in ids[trained].tolist()])
        took = fast * columns["seconds"][trained] / columns["examples"][trained]
        self.seconds[ids[trained]] = took
        by_kind = defaultdict(list)
        for k in ids[trained].tolist():
            by_kind[self.fed.architectures[k]].append(self.seconds[k])
        self._rates |= {kind: float(np.median(seconds)) for kind, seconds in by_kind.items()}

    @property
    def knows_all(self) -> bool:
        """Whether all clients have trained, or some of every architecture."""
        return bool(np.isfinite(self.seconds).all()) or self._rates.keys() >= self.kinds

    def deal(self, cohort: list[int]) -> None:
        """Distribute the cohort evenly over all ranks, in complete groups; collective."""
        groups, placement = self.fed.turns.grouping(cohort), self.fed.placement
        costs = [sum(self._estimate(ks)) for ks in groups]
        old = [placement.ranks[ks[0]] for ks in groups]
        new = level(costs, old, placement.speeds)
        move(self.fed, {k: rank for ks, rank in zip(groups, new, strict=True) for k in ks})

    def rebalance(self) -> int:
        """Move clients between ranks by measured cost if that pays; collective.

        A client that has not trained yet costs as much per example as others of its architecture.
        Returns the number of clients that moved; 0 until every architecture has trained.
        """
        if not self.knows_all:
            return 0
        ranks = self.fed.placement.ranks
        of_kind = np.array([self._rates.get(kind, np.nan) for kind in self.fed.architectures])
        seconds = np.where(np.isfinite(self.seconds), self.seconds, of_kind)
        costs = (seconds * self.fed.sizes).tolist()  # of one epoch
        new = better(costs, ranks, self.fed.placement.speeds)
        moves = {k: new[k] for k in range(self.fed.K) if new[k] != ranks[k]}
        move(self.fed, moves)
        return len(moves)

    def _estimate(self, ks: list[int]) -> list[float]:
        """Return the cost of the next round of each of these clients.

        The costs are the last measured seconds of their architectures, or the estimates from before
        the run if one of these architectures has not been measured yet.
        """
        kinds, sizes = [self.fed.architectures[k] for k in ks], [self.fed.sizes[k] for k in ks]
        if self._rates.keys() >= set(kinds):
            return [self._rates[kind] * n for kind, n in zip(kinds, sizes, strict=True)]
        return [self.fed.placement.costs[k] for k in ks]
