"""Placement of clients on ranks: a greedy assignment, improved by exchanges of pairs.

The heaviest client comes first; each goes to the rank that would finish it first. Ranks may differ
in speed (GPUs of two kinds): a client's cost over its rank's speed is the time that it takes there.
"""

import heapq
from collections.abc import Sequence

import numpy as np

ENOUGH = 1.001  # ratio to the bound that is near enough
STEPS = 20  # exchanges, at most, for each rank
# Pairs looked at for one exchange, at most: with more there are so many clients per rank that the
# rule is near the bound.
PAIRS = 10**7

Floats = Sequence[float] | np.ndarray


def place(costs: Floats, ranks: int, speeds: Floats = ()) -> list[int]:
    """Return the rank of each client.

    It is deterministic: equal costs are ordered by client id, equal times by rank.
    costs: [K], any unit, >= 0.
    speeds: [R], > 0, any unit; if empty, all ranks have the same speed.
    Graham's longest-processing-time rule, makespan at most 4/3 of the best (twice, if speeds
    differ: Gonzalez, Ibarra, Sahni, SIAM J. Comput. 1977), then improved as long as an exchange
    helps the rank that takes longest. O(K log R) for each kind of rank if the rule alone is good
    enough, as it is for many clients per rank.
    """
    speeds = every(speeds, ranks)
    kinds = {
        speed: [(0.0, int(r)) for r in np.flatnonzero(speeds == speed)]
        for speed in np.unique(speeds).tolist()
    }
    placement = [0] * len(costs)
    for k in sorted(range(len(costs)), key=lambda k: (-costs[k], k)):
        done = {
            speed: ((loads[0][0] + costs[k]) / speed, loads[0][1]) for speed, loads in kinds.items()
        }
        loads = kinds[min(done, key=done.__getitem__)]
        load, placement[k] = loads[0]
        heapq.heapreplace(loads, (load + costs[k], placement[k]))
    return improve(np.array(costs, dtype=float), np.array(placement, dtype=int), speeds).tolist()


def every(speeds: Floats, ranks: int) -> np.ndarray:
    """Return the speed of every rank, [R]."""
    return np.array(speeds, dtype=float) if len(speeds) else np.ones(ranks)


def improve(costs: np.ndarray, placement: np.ndarray, speeds: np.ndarray) -> np.ndarray:
    """Return the placement after exchanges that each relieve the slowest rank, until none does."""
    ranks = len(speeds)
    loads, enough = np.bincount(placement, costs, ranks), ENOUGH * bound(costs, ranks, speeds)
    for _ in range(STEPS * ranks if len(costs) ** 2 <= PAIRS * ranks else 0):
        top = int((loads / speeds).argmax())
        swap = (
            exchange(costs, placement, loads, speeds, top)
            if loads[top] / speeds[top] > enough
            else None
        )
        if swap is None:
            break
        a, b, rank = swap
        placement[a] = rank
        if b is not None:
            placement[b] = top
        loads[[top, rank]] = [costs[placement == r].sum() for r in (top, rank)]
    return placement


def exchange(
    costs: np.ndarray, placement: np.ndarray, loads: np.ndarray, speeds: np.ndarray, top: int
) -> tuple[int, int | None, int] | None:
    """Return the exchange of clients that helps rank `top` most.

    The result is a client of `top`, the client that it gets in return or None, and the other rank.
    It minimises the longer of both ranks' times. Returns None if no exchange makes it shorter.
    """
    mine, others = np.flatnonzero(placement == top), np.flatnonzero(placement != top)
    # also without a client in return
    ranks = np.concatenate([placement[others], np.arange(len(loads))])
    # [mine, others + R]
    shift = costs[mine, None] - np.concatenate([costs[others], np.zeros(len(loads))])
    longer = np.maximum((loads[top] - shift) / speeds[top], (loads[ranks] + shift) / speeds[ranks])
    longer[:, ranks == top] = np.inf
    best = int(longer.argmin())
    if not longer.size or longer.flat[best] >= loads[top] / speeds[top] * (1 - 1e-9):
        return None
    a, b = divmod(best, len(ranks))
    return int(mine[a]), int(others[b]) if b < len(others) else None, int(ranks[b])


def bound(costs: Floats, ranks: int, speeds: Floats = ()) -> float:
    """Return a lower bound of every placement's makespan.

    It is the largest of the mean load, the largest client, and the load of clients that must share
    a rank: some rank, at best the fastest, holds j + 1 of the j R + 1 largest clients, so at least
    the j + 1 smallest of them.
    """
    speeds = every(speeds, ranks)
    falling = np.sort(np.asarray(costs, dtype=float))[::-1]
    sums = np.concatenate([[0.0], falling.cumsum()])
    shared = [
        sums[j * ranks + 1] - sums[j * ranks - j] for j in range((len(falling) - 1) // ranks + 1)
    ]
    return max([sums[-1] / speeds.sum(), *(load / speeds.max() for load in shared)])


def makespan(costs: Floats, placement: Sequence[int], speeds: Floats = ()) -> float:
    """Return the time of the rank that takes longest."""
    loads: dict[int, float] = {}
    for cost, rank in zip(costs, placement, strict=True):
        loads[rank] = loads.get(rank, 0.0) + cost
    return max(
        (load / (speeds[rank] if len(speeds) else 1.0) for rank, load in loads.items()), default=0.0
    )
