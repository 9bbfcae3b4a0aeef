"""A cohort's share of the weight of all clients, for means over all of them."""

from hpcfed import Federation, Params, RoundBased


def without_trained(fed: Federation, state: Params) -> Params:
    """Return what stays of a mean to which nobody has sent anything: of changes, 0.

    Clients send changes of the tensors that are trained, and the other ones whole.
    """
    return Params({**state, **(state.pick(fed.trainable) * 0)})


def share_of(method: RoundBased, fed: Federation, cohort: list[int]) -> float:
    """Return the weight of these clients divided by that of all clients.

    If privacy hides who takes part, it is the expected share (`Federation.share`).
    """
    if method.weighting == "uniform" or (fed.rule and fed.rule.share_of_cohorts(fed) is not None):
        return fed.share(cohort)
    return sum(int(fed.sizes[k]) for k in cohort) / int(sum(fed.sizes))
