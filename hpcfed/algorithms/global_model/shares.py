"""A cohort's share of the weight of all clients, for means over all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcfed.algorithms.base import RoundBased
    from hpcfed.federation.federation import Federation


def share_of(method: RoundBased, fed: Federation, cohort: list[int]) -> float:
    """Return the weight of these clients divided by that of all clients."""
    if method.weighting == "uniform":
        return len(cohort) / fed.K
    return sum(int(fed.sizes[k]) for k in cohort) / int(sum(fed.sizes))
