"""Which rank holds which client: heaviest first, each to the rank with the least load; then exchanges of pairs."""

import heapq
from collections.abc import Sequence

import numpy as np

ENOUGH = 1.001  # times the bound: nearer is not worth looking for
STEPS = 20  # exchanges, at most, for each rank
PAIRS = 10**7  # looked at for one exchange, at most: with more, clients are so many a rank that the rule is near


def place(costs: Sequence[float], ranks: int) -> list[int]:
    """The rank of each client. Deterministic: equal costs go by client id, equal loads by rank.

    costs: [K], any unit, >= 0.  Graham's longest-processing-time rule, makespan at most 4/3 of the best, then
    improved as long as an exchange helps the most loaded rank.  O(K log R), where the rule alone is good enough,
    as it is for many clients a rank.
    """
    loads = [(0.0, rank) for rank in range(ranks)]
    placement = [0] * len(costs)
    for k in sorted(range(len(costs)), key=lambda k: (-costs[k], k)):
        load, rank = heapq.heappop(loads)
        placement[k] = rank
        heapq.heappush(loads, (load + costs[k], rank))
    return improved(np.array(costs, dtype=float), np.array(placement, dtype=int), ranks).tolist()


def improved(costs: np.ndarray, placement: np.ndarray, ranks: int) -> np.ndarray:
    """The placement after exchanges that each take load from the most loaded rank, until none does."""
    loads, enough = np.bincount(placement, costs, ranks), ENOUGH * bound(costs, ranks)
    for _ in range(STEPS * ranks if len(costs) ** 2 <= PAIRS * ranks else 0):
        top = int(loads.argmax())
        found = exchange(costs, placement, loads, top) if loads[top] > enough else None
        if found is None:
            break
        a, b, rank = found
        placement[a] = rank
        if b is not None:
            placement[b] = top
        loads[[top, rank]] = [costs[placement == r].sum() for r in (top, rank)]
    return placement


def exchange(
    costs: np.ndarray, placement: np.ndarray, loads: np.ndarray, top: int
) -> tuple[int, int | None, int] | None:
    """Client a of rank `top`, client b or nobody, and b's rank, whose exchange leaves the larger of both loads least.

    None where no exchange lowers it.
    """
    mine, others = np.flatnonzero(placement == top), np.flatnonzero(placement != top)
    ranks = np.concatenate([placement[others], np.arange(len(loads))])  # to each rank also without anything back
    shift = costs[mine, None] - np.concatenate([costs[others], np.zeros(len(loads))])  # [mine, others + R]
    higher = np.maximum(loads[top] - shift, loads[ranks] + shift)
    higher[:, ranks == top] = np.inf
    best = int(higher.argmin())
    if not higher.size or higher.flat[best] >= loads[top] * (1 - 1e-9):
        return None
    a, b = divmod(best, len(ranks))
    return int(mine[a]), int(others[b]) if b < len(others) else None, int(ranks[b])


def bound(costs: Sequence[float], ranks: int) -> float:
    """What no placement can be below: the mean load, the largest client, and clients that must share a rank.

    Of the j R + 1 largest clients some rank holds j + 1, so at least the j + 1 smallest of them.
    """
    falling = np.sort(np.asarray(costs, dtype=float))[::-1]
    sums = np.concatenate([[0.0], falling.cumsum()])
    shared = [sums[j * ranks + 1] - sums[j * ranks - j] for j in range((len(falling) - 1) // ranks + 1)]
    return max([sums[-1] / ranks, *shared])


def makespan(costs: Sequence[float], placement: Sequence[int]) -> float:
    """The load of the most loaded rank."""
    loads: dict[int, float] = {}
    for cost, rank in zip(costs, placement, strict=True):
        loads[rank] = loads.get(rank, 0.0) + cost
    return max(loads.values(), default=0.0)
