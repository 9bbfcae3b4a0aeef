"""Tiers: all clients of one depth of a model, for methods with models of several depths."""

from dataclasses import replace
from typing import Any

import torch

from hpcfed import Federation, Mean, Params, RoundBased
from hpcfed.algorithms.base import common_name, score_common
from hpcfed.core.architecture import Architecture
from hpcfed.models.depths import Family, family


def tiers(fed: Federation) -> Family:
    """Return the depths of the clients' models, without what the method adds to these.

    Raises ConfigError if they are not of one family.
    """
    return family(
        {
            kind: fed.store.layout(str(replace(Architecture.parse(kind), variants=())))
            for kind in dict.fromkeys(fed.architectures)
        }
    )


def tier_shares(method: RoundBased, fed: Federation, cohort: list[int]) -> dict[str, float]:
    """Return each tier's share of the weights of the cohort, by architecture; collective."""
    kinds = tiers(fed).tiers
    zero = torch.zeros(len(kinds), dtype=torch.float64, device=fed.device)
    one_hot = {kind: zero.clone() for kind in kinds}
    for i, kind in enumerate(kinds):
        one_hot[kind][i] = 1
    parts = (
        (c.id, Mean.of(Params(of=one_hot[c.architecture]), method.weight(c)))
        for c in fed.mine(cohort)
    )
    mean = fed.mean(parts, keep=Params(of=zero))["of"]
    return dict(zip(kinds, mean.tolist(), strict=True))


def accuracies(method: RoundBased, fed: Federation, state: Any) -> dict[str, float]:
    """Return the main metric of each tier's model, for `columns`; collective.

    It is measured on the whole test split. Without evaluate.common there is none, and with one tier
    neither, whose model is that of the record.
    """
    kinds = tiers(fed).tiers
    if not fed.job.evaluate.common or len(kinds) == 1:
        return {}
    return {f"{common_name(fed)}_{kind}": score_common(method, fed, state, kind) for kind in kinds}
