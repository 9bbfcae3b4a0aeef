"""Whether clients should move to other ranks."""

from collections.abc import Sequence

from hpcfed.cluster.placement import makespan, place

WORTH = 1.02  # clients are moved only where that shortens a round by more than this factor: of two ranks one
# waits up to twice as much of it


def better(costs: Sequence[float], placement: list[int], ranks: int) -> list[int]:
    """The placement for these costs, [K], or the present one where a new one would not pay."""
    new = place(costs, ranks)
    return new if makespan(costs, placement) >= WORTH * makespan(costs, new) else placement
