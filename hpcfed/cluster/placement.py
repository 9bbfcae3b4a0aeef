"""Which rank holds which client: heaviest first, each to the rank with the least load."""

import heapq
from collections.abc import Sequence


def place(costs: Sequence[float], ranks: int) -> list[int]:
    """The rank of each client. Deterministic: equal costs go by client id, equal loads by rank.

    costs: [K], any unit, >= 0.  Graham's longest-processing-time rule: makespan at most 4/3 of the best.
    """
    loads = [(0.0, rank) for rank in range(ranks)]
    placement = [0] * len(costs)
    for k in sorted(range(len(costs)), key=lambda k: (-costs[k], k)):
        load, rank = heapq.heappop(loads)
        placement[k] = rank
        heapq.heappush(loads, (load + costs[k], rank))
    return placement


def makespan(costs: Sequence[float], placement: Sequence[int]) -> float:
    """The load of the most loaded rank."""
    loads: dict[int, float] = {}
    for cost, rank in zip(costs, placement, strict=True):
        loads[rank] = loads.get(rank, 0.0) + cost
    return max(loads.values(), default=0.0)
