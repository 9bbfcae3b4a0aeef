"""Local adaptation: what each client makes of its model after the last round, with any method.

Yu, Bagdasaryan, Shmatikov (Salvaging Federated Learning by Local Adaptation), 2020,
arXiv:2002.04758, section 3: fine-tuning (FT), of the head alone (FB), with elastic weight
consolidation (MTL), with distillation (KD); held against the authors' code
(ebagdasa/federated_adaptation), whose lam, alpha and temperature are the defaults. Deviations: the
Fisher information is that of the public examples, squares of batch gradients as in that code; the
divergence is summed over classes, where that code takes the mean over all elements, 1 / C as much;
batch normalisation below a head that is trained alone keeps its statistics, where they move in that
code. The optimiser, its momentum and batch size are those of local training.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from hpcfed.clients.client import Paired
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.training import infer
from hpcfed.training.batches import inputs
from hpcfed.training.local import LocalSteps
from hpcfed.training.losses import distil, elastic, objective, soften

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation
    from hpcfed.models.model import Model

PHASE = "adapt"  # names the random streams


def adapt(fed: Federation, client: Client, t: int) -> None:
    """Adapt the model that the client has to its examples, as [adapt] says. t: the last round."""
    settings = fed.job.adapt
    if not settings.epochs:
        return
    data, loss, only = client.train, plain, None
    if settings.how == "head":
        only = in_head
        if not any(map(in_head, client.skeleton.layout.params)):
            raise ConfigError(
                f"adapt.how = 'head': {client.architecture} has no head; use 'all' or 'distil'"
            )
    elif settings.how == "ewc" and settings.lam:
        information, anchor = fisher(fed, client, t), client.params()
        loss = partial(consolidated, anchor, information, settings.lam)
    elif settings.how == "distil" and settings.alpha:
        teacher = soften(infer.logits(fed, client, client.train), settings.tau)
        data = Paired(client.train, teacher, with_labels=True)
        loss = partial(distilled, settings.alpha, settings.tau)
    how: dict[str, Any] = {"data": data, "only": only, "lr": settings.lr, "phase": PHASE}
    with LocalSteps(fed, client, t, epochs=settings.epochs, **how) as steps:
        if only:
            steps.model.body.eval()  # whose statistics are as fixed as its weights
        for x, y in steps:
            steps.descend(steps.value(loss, x, y))
    client.model.eval()


def in_head(name: str) -> bool:
    """Whether a tensor is the head's."""
    return name.startswith("head.")


def plain(model: Model, x: Any, y: Tensor) -> Tensor:
    """The objective of fine-tuning."""
    return objective(model(x), y)


def consolidated(
    anchor: Params, information: Params, lam: float, model: Model, x: Any, y: Tensor
) -> Tensor:
    """Fine-tuning that spares what mattered to the model as it was."""
    return objective(model(x), y) + elastic(model, anchor, information, lam)


def distilled(alpha: float, tau: float, model: Model, x: Any, y: tuple[Tensor, Tensor]) -> Tensor:
    """Fine-tuning that keeps to the answers of the model as it was; y: labels, soft answers."""
    labels, soft = y
    out = model(x)
    return (1 - alpha) * objective(out, labels) + alpha * distil(soft, out, tau)


def fisher(fed: Federation, client: Client, t: int) -> Params:
    """Diagonal of the empirical Fisher information of the client's model, by parameter: the mean
    over batches of public examples of the squared gradient. The model stays as it is.
    """
    skeleton, size = client.skeleton, fed.job.local.batch
    total, n = skeleton.grad.clone().zero_(), len(fed.public)
    parts = np.array_split(np.arange(n), -(-n // size))
    draws = rng.torch_stream(fed.seed, "fisher", "augment", t, client.id, device=fed.device)
    with (
        client.borrowed(),
        rng.scoped(fed.seed, "fisher", "dropout", t, client.id, device=fed.device),
    ):
        skeleton.model.train()
        for rows in parts:
            x, y = fed.public.batch(rows)
            skeleton.zero_grad()
            plain(skeleton.model, inputs(fed, x, 1, draws), y).backward()
            total += skeleton.grad.square()
        skeleton.zero_grad()
    return Params(skeleton.layout.views(total / len(parts)))
