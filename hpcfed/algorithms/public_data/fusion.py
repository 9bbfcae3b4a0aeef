"""Models of several architectures side by side, and students that learn from all of them together.

A state of several models is one `Params`, with names "ARCHITECTURE/name".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hpcfed.clients.client import Paired
from hpcfed.core.params import Mean, Params
from hpcfed.training import evaluate
from hpcfed.training.infer import outputs
from hpcfed.training.losses import distil, soften
from hpcfed.training.server import fit_targets, predictor, split_holdout

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation


def join_models(models: Mapping[str, Params]) -> Params:
    """Models by architecture as one state."""
    return Params(
        {
            name: v
            for kind, model in models.items()
            for name, v in model.prefixed(f"{kind}/").items()
        }
    )


def answer(fed: Federation, client: Client, held: float, least: float) -> tuple[Mean, float]:
    """A client's logits of all public data as its part of a mean, and its weight there, 0 or 1.

    It is the server that works them out, from the uploaded model.  held: share of the public data
    held out.
    least: a client whose accuracy there is below so many times that of guessing, 1 / C, gets weight
    0.
    """
    z = outputs(fed, client.model.eval(), fed.public)  # [N, C]
    _, apart = split_holdout(fed, len(fed.public), held)
    correct = (
        z[torch.from_numpy(apart).to(z.device)].argmax(1).cpu().numpy() == fed.public.labels[apart]
    )
    good = float(not least or correct.mean() >= least / fed.classes)
    return Mean.of(Params(logits=z), good), good


def students(
    fed: Federation,
    state: Params,
    cohort: Iterable[int],
    teacher: Tensor,
    tau: float,
    t: int,
    **how: Any,
) -> Params:
    """The state after a student of each of the cohort's architectures has learnt the teacher's
    logits, [N, C].

    A student starts from its architecture's model in the state.  how: as `fit_targets` takes it.
    """
    data = Paired(fed.public, soften(teacher, tau))

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return distil(target, logits, tau)

    new = {}
    for kind in sorted({fed.architectures[k] for k in cohort}):
        start = state.under(f"{kind}/")
        new[kind] = fit_targets(
            fed, kind, start, data, loss, "students", kind, t, optimiser="adam", **how
        )
    return Params({**state, **join_models(new)})


def accuracies(fed: Federation, state: Params) -> dict[str, float]:
    """Accuracy on the whole test split of each architecture's model and of the mean of their
    logits; collective.

    Nothing where there is one architecture.
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
