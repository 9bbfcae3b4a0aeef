"""Whether clients should move to other ranks, and how they do."""

from collections.abc import Mapping, Sequence

import numpy as np

from hpcfed.federation.federation import Federation
from hpcfed.machine.placement import makespan, place

# clients are moved only where that shortens a round by more than this factor: of two ranks one
WORTH = 1.02
# waits up to twice as much of it


def better(costs: Sequence[float], placement: list[int], speeds: Sequence[float]) -> list[int]:
    """The placement for these costs, [K], on ranks of these speeds, [R]; the present one where a
    new one would not pay.
    """
    new = place(costs, len(speeds), speeds)
    return (
        new
        if makespan(costs, placement, speeds) >= WORTH * makespan(costs, new, speeds)
        else placement
    )


def level(costs: Sequence[float], placement: Sequence[int], speeds: Sequence[float]) -> list[int]:
    """A placement in which no rank waits much for another, by few moves: each time one client of
    the rank that takes longest goes to the one that takes least, that after which both take most
    alike.

    costs, placement: of the clients of one round.  speeds: of all ranks, [R]. Clients that hold
    nothing move for nothing, so that the ranks of a round do not depend on who was drawn for it.
    """
    costs, placed = np.array(costs, dtype=float), np.array(placement, dtype=int)
    fast = np.array(speeds, dtype=float)
    loads = np.bincount(placed, costs, len(fast))
    while (loads / fast).max() > WORTH * loads.sum() / fast.sum():
        top, low = int((loads / fast).argmax()), int((loads / fast).argmin())
        mine, gap = np.flatnonzero(placed == top), loads[top] / fast[top] * fast[low] - loads[low]
        best = mine[np.abs(costs[mine] - gap * fast[top] / (fast[top] + fast[low])).argmin()]
        if (
            not 0 < costs[best] < 0.999 * gap
        ):  # where the gap is a client but for rounding it would go to and fro
            break
        placed[best] = low
        loads[[top, low]] = [costs[placed == rank].sum() for rank in (top, low)]
    return placed.tolist()


def move(fed: Federation, to: Mapping[int, int]) -> None:
    """Give these clients their ranks; collective. Those that keep nothing move without a
    message.
    """
    moves = {k: rank for k, rank in to.items() if rank != fed.placement[k]}
    keeping = (
        fed.comm.gather({k: 1 for k in moves if k in fed.clients and fed.keeps(k)}) if moves else {}
    )
    for k, rank in moves.items():
        if k in keeping:
            fed.hand_over(k, fed.placement[k], rank)
        fed.placement[k] = rank
