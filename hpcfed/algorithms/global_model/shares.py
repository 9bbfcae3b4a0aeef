"""A cohort's share of the weight of all clients, for means over all of them."""

from hpcfed import Federation, RoundBased


def share_of(method: RoundBased, fed: Federation, cohort: list[int]) -> float:
    """Return the weight of these clients divided by that of all clients."""
    if method.weighting == "uniform":
        return len(cohort) / fed.K
    return sum(int(fed.sizes[k]) for k in cohort) / int(sum(fed.sizes))
