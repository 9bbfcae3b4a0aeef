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
    """Return each tier's share of the weights of the cohort, by architecture; collective.

    A robust rule is for what clients send, and the server knows who they are; where privacy hides
    them, the shares are a mean of uploads too.
    """
    kinds = tiers(fed).tiers
    if not (fed.rule and fed.rule.hides_counts):
        weights = {k: 1 if method.weighting == "uniform" else int(fed.sizes[k]) for k in cohort}
        total = sum(weights.values())
        return {
            kind: sum(n for k, n in weights.items() if fed.architectures[k] == kind) / total
            for kind in kinds
        }
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
