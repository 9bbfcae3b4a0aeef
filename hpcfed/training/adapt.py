"""Local adaptation: each client adapts its model after the last round, with any method.

Yu, Bagdasaryan, Shmatikov (Salvaging Federated Learning by Local Adaptation), 2020,
arXiv:2002.04758, section 3: fine-tuning (FT), of the head alone (FB), with elastic weight
consolidation (MTL), with distillation (KD). Compared with the authors' code
(ebagdasa/federated_adaptation), whose lam, alpha and temperature are the defaults. Deviations: the
Fisher information is that of the public examples, squares of batch gradients as in that code; the
divergence is summed over classes, where that code takes the mean over all elements, 1 / C as much;
batch normalisation below a head that is trained alone keeps its statistics, where they change in
that code. The optimiser, its momentum and batch size are those of local training.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hpcfed.clients.client import Paired
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.data.sampling import even_parts
from hpcfed.models.model import in_head
from hpcfed.models.precision import autocast
from hpcfed.training import infer
from hpcfed.training.batches import inputs
from hpcfed.training.divergence import ADAPT
from hpcfed.training.local import LocalSteps
from hpcfed.training.losses import distil, elastic, soften

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation
    from hpcfed.models.model import Model
    from hpcfed.tasks import Task


def adapt(fed: Federation, client: Client, t: int) -> None:
    """Adapt the client's present model to its examples by the settings [adapt].

    t: the last round. Raises ConfigError if the head is to be adapted and the model has none.
    """
    settings = fed.job.adapt
    if not settings.epochs:
        return
    data, loss, only = client.train, partial(plain, fed.task), None
    if settings.how == "head":
        only = in_head
        if not any(map(in_head, client.skeleton.layout.params)):
            raise ConfigError(
                f"adapt.how = 'head': {client.architecture} has no head; use 'all' or 'distil'"
            )
    elif settings.how == "ewc" and settings.lam:
        information, anchor = fisher(fed, client, t), client.params()
        loss = partial(consolidated, fed.task, anchor, information, settings.lam)
    elif settings.how == "distil" and settings.alpha:
        teacher = soften(infer.logits(fed, client, client.train), settings.tau)
        data = Paired(client.train, teacher, with_labels=True)
        loss = partial(distilled, fed.task, settings.alpha, settings.tau)
    how: dict[str, Any] = {"data": data, "only": only, "lr": settings.lr, "phase": ADAPT}
    with LocalSteps(fed, client, t, epochs=settings.epochs, **how) as steps:
        if only:
            steps.model.body.eval()  # keeps its statistics fixed, like its weights
        for x, y in steps:
            steps.learn(loss, x, y)
    client.model.eval()


def plain(task: Task, model: Model, x: Any, y: Tensor) -> Tensor:
    """Return the objective of fine-tuning."""
    return task.loss(model(x), y)


def consolidated(
    task: Task, anchor: Params, information: Params, lam: float, model: Model, x: Any, y: Tensor
) -> Tensor:
    """Return the objective of fine-tuning with elastic weight consolidation.

    anchor: the parameters before adaptation.  information: Fisher information by parameter.
    lam: its weight.
    """
    return task.loss(model(x), y) + elastic(model, anchor, information, lam)


def distilled(
    task: Task, alpha: float, tau: float, model: Model, x: Any, y: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the objective of fine-tuning with distillation from the model before adaptation.

    y: labels, and soft predictions of that model.  alpha: weight of distillation.  tau:
    temperature.
    """
    labels, soft = y
    out = model(x)
    return (1 - alpha) * task.loss(out, labels) + alpha * distil(soft, out, tau)


def fisher(fed: Federation, client: Client, t: int) -> Params:
    """Return the diagonal of the empirical Fisher information of the client's model.

    It is the mean over batches of public examples of the squared gradient, by parameter. The model
    stays as it is.
    """
    skeleton, size = client.skeleton, fed.job.local.batch
    total, parts = skeleton.grad.clone().zero_(), even_parts(len(fed.public), size)
    draws = rng.torch_stream(fed.seed, "fisher", "augment", t, client.id, device=fed.device)
    with (
        client.borrowed(),
        fed.scoped("fisher", "dropout", t, client.id),
    ):
        skeleton.model.train()
        for rows in parts:
            x, y = fed.public.batch(rows)
            skeleton.zero_grad()
            prepared = inputs(fed, x, 1, draws)
            with autocast(fed.job.run.precision, fed.device, skeleton.model, prepared):
                value = plain(fed.task, skeleton.model, prepared, y)
            value.backward()
            total += skeleton.grad.square()
        skeleton.zero_grad()
    return Params(skeleton.layout.views(total / len(parts)))
