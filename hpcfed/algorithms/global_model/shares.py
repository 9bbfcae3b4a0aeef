"""A cohort's share of the weight of all clients, for means over all of them."""

from hpcfed import Federation, RoundBased


def share_of(method: RoundBased, fed: Federation, cohort: list[int]) -> float:
    """Return the weight of these clients divided by that of all clients.

    If privacy hides who takes part, it is the expected share (`Federation.share`).
    """
    if method.weighting == "uniform" or (fed.rule and fed.rule.share_of_cohorts(fed) is not None):
        return fed.share(cohort)
    return sum(int(fed.sizes[k]) for k in cohort) / int(sum(fed.sizes))
