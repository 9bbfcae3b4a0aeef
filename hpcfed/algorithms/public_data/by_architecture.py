"""A server's state with one model for each architecture of its clients, named "KIND/name"."""

from collections.abc import Mapping

import torch

from hpcfed import Federation, Mean, Params
from hpcfed.training import evaluate
from hpcfed.training.server import predictor


def join_models(models: Mapping[str, Params]) -> Params:
    """Return models by architecture as one state."""
    return Params(
        {
            name: v
            for kind, model in models.items()
            for name, v in model.prefixed(f"{kind}/").items()
        }
    )


def of_architecture(fed: Federation, k: int, sent: Mean, factor: float = 1.0) -> Mean:
    """Return the model that client k has sent as its part in the mean of its architecture.

    factor: of its weight.
    """
    (term,) = sent.terms
    kind = fed.architectures[k]
    return Mean.of(term.value.prefixed(f"{kind}/"), term.weight * factor)


def score_groups(fed: Federation, state: Params) -> dict[str, float]:
    """Return each architecture's accuracy on the whole test split, and that of the mean logits.

    Collective. Returns an empty dictionary for a single architecture.
    """
    kinds = sorted(set(fed.architectures))
    if len(kinds) == 1:
        return {}
    members = {
        f"accuracy_common_{kind}": predictor(fed, kind, state.under(f"{kind}/")) for kind in kinds
    }
    together = {
        "accuracy_ensemble": lambda x: torch.stack([answer(x) for answer in members.values()]).mean(
            0
        )
    }
    return {name: evaluate.common(fed, answer) for name, answer in (members | together).items()}
