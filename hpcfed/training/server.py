"""Training on the server: of a few parameters or a complete module, on the server's data."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from hpcfed.core import rng
from hpcfed.core.aligned import BOUNDARY
from hpcfed.core.errors import DivergedError
from hpcfed.core.params import Params
from hpcfed.core.payload import not_finite
from hpcfed.models.precision import autocast, raised
from hpcfed.training.batches import batches
from hpcfed.training.infer import FEW, outputs
from hpcfed.training.recorded_step import alike

if TYPE_CHECKING:
    from hpcfed.clients.client import Paired, Shard
    from hpcfed.federation.federation import Federation
    from hpcfed.models.flat import Skeleton

Batch = Callable[[np.ndarray], Any]  # positions -> a batch
Loss = Callable[[Params, Any], Tensor]  # parameters, batch -> scalar
OFTEN = 100  # steps between two evaluations on held-out data


class Watch:
    """Early stopping: ends a training that does not improve, and keeps the best parameters.

    The parameters at the start count too.

    measure: the value that is to decrease.  patience: steps without improvement before the end.
    """

    def __init__(self, measure: Callable[[Params], float], start: Params, patience: int):
        self.measure, self.patience = measure, patience
        self.best, self.value, self.at = start.clone(), measure(start), 0

    def ends(self, params: Params, done: int, last: bool) -> bool:
        """Return whether nothing has improved for `patience` steps.

        It measures every OFTEN steps and at the last.
        """
        if done % min(OFTEN, self.patience) and not last:
            return False
        if (value := self.measure(params)) < self.value:
            self.best, self.value, self.at = params.clone(), value, done
        return done - self.at >= self.patience


class Average:
    """Stochastic weight averaging: the mean of the parameters at regular steps of a training.

    Izmailov et al., UAI 2018, arXiv:1803.05407, algorithm 1.
    trained: whether a tensor is averaged, by name; the others keep their final values.
    start, every: steps before the first model, and between two models.
    """

    def __init__(self, trained: Callable[[str], bool], start: int, every: int):
        self.trained, self.start, self.every = trained, start, every
        self.models, self.best = 0, Params()

    def ends(self, params: Params, done: int, last: bool) -> bool:
        """Add the parameters to the mean if it is their turn; always returns False."""
        if done > self.start and (done - self.start) % self.every == 0:
            self.models += 1
            old = self.best or params.clone()
            share = 1 / self.models
            self.best = Params(
                {
                    n: old[n] + share * (v.detach() - old[n]) if self.trained(n) else v.detach()
                    for n, v in params.items()
                }
            )
        if last:  # statistics are those at the end; if no model was averaged, the last one counts
            rest = params.clone()
            self.best = Params({**rest, **self.best.pick(self.trained)})
        return False


def fit(
    fed: Federation,
    params: Params,
    loss: Loss,
    batch: Batch,
    n: int,
    *key: str | int,
    epochs: int = 1,
    size: int,
    lr: float,
    optimiser: str = "sgd",
    momentum: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    trained: Callable[[str], bool] = lambda name: True,
    steps: int | None = None,
    schedule: str = "constant",
    halve_every: int = 0,
    clip: float = 0.0,
    watch: Watch | Average | None = None,
) -> Params:
    """Return new parameters after training on n examples; the given ones stay as they are.

    loss: (parameters by name, batch) -> scalar, in float32 for any run.precision; of a model it is
    the outputs by `forward`.  batch: positions in 0..n-1 -> a batch.
    key: names the order of the examples.
    epochs: passes over the examples.  steps: number of steps, instead of epochs.
    size: examples in a batch.
    optimiser: "sgd" or "adam", with these betas.
    trained: whether a tensor is trained, by name; buffers, which only a forward pass changes, are
    not.
    schedule: "cosine" lets the learning rate fall to 0 over the steps.
    halve_every: steps after which the learning rate is halved, again and again; 0: it stays.
    clip: largest norm of the gradient; 0: any.
    watch: may end the training, and chooses the parameters that are returned.
    Call it inside `Federation.on_root`. Raises DivergedError if a tensor ends as nan or infinite,
    naming it.
    """
    new = params.clone()
    leaves = [v.requires_grad_() for name, v in new.items() if trained(name)]
    descent = (
        torch.optim.Adam(leaves, lr, betas)
        if optimiser == "adam"
        else torch.optim.SGD(leaves, lr, momentum)
    )
    if fed.trial:
        steps, n, size = 1, min(n, FEW), FEW
    total = steps or epochs * math.ceil(n / size)
    plan = batches(n, size, total, True, rng.stream(fed.seed, *key, "batches"))
    with fed.scoped(*key, "dropout"):
        for done, rows in enumerate(plan):
            if schedule == "cosine":
                descent.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * done / total))
            if halve_every:
                descent.param_groups[0]["lr"] = lr * 0.5 ** (done // halve_every)
            descent.zero_grad()
            part = batch(rows)
            value = loss(new, part)
            value.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(leaves, clip)
            descent.step()
            fed.clock.heartbeat.step()
            if watch and watch.ends(new, done + 1, done + 1 == total):
                break
    result = watch.best if watch else new.clone()
    if name := not_finite(result):
        raise DivergedError(
            f"{fed.warnings.where(None)}: its {name} is nan or infinite after its training in "
            f"round {fed.t + 1} (lr {lr:g}); "
            f"{fed.warnings.last_checkpoint}\n  a smaller learning rate of the server may help"
        )
    return result


def call(skeleton: Skeleton, params: Params, x: Any) -> Tensor:
    """Return the module's output with these parameters and buffers instead of its own."""
    return functional_call(skeleton.model, dict(params), (x,))


def forward(fed: Federation, skeleton: Skeleton, params: Params, x: Any) -> Tensor:
    """Return what `call` does, for a loss of `fit`: layers are computed in the run's precision."""
    with autocast(fed.job.run.precision, fed.device, skeleton.model, x):
        return raised(call(skeleton, params, x))


def parameters(skeleton: Skeleton) -> Callable[[str], bool]:
    """Return a function that says whether a name is that of a parameter, not of a buffer."""
    return set(skeleton.layout.params).__contains__


def predictor(fed: Federation, architecture: str, params: Params) -> Callable[[Any], Tensor]:
    """Return the function of a server's model: prepared inputs [n, *shape] -> logits [n, C]."""
    module = fed.module(architecture)
    module.model.eval()
    return with_weights(module, params)


def with_weights(module: Skeleton, params: Params) -> Callable[[Any], Tensor]:
    """Return the function of a module with these weights instead of its own."""
    return partial(call, module, lay_out(module, params))


def lay_out(module: Skeleton, params: Params) -> Params:
    """Return the weights in the memory layout of the module, on which the last bits depend.

    They have another layout, or begin elsewhere, when they come out of a checkpoint or a replay
    log.
    """
    return Params({name: in_layout(v, module.view(name)) for name, v in params.items()})


def in_layout(value: Tensor, model: Tensor) -> Tensor:
    """Return the value with its axes in memory as those of a tensor of the module.

    The value may be larger: matched models have more units than the module.
    """
    if value.data_ptr() % BOUNDARY:
        value = value.clone()
    if value.shape == model.shape:
        return alike(value, model)
    strides = model.stride()
    order = sorted(range(value.ndim), key=lambda axis: -strides[axis])
    places = [order.index(axis) for axis in range(value.ndim)]
    return value.permute(order).contiguous().permute(places)


def split_holdout(fed: Federation, n: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions in 0..n-1 for training, and those held out.

    They are the same in all rounds and on all ranks.
    """
    order = rng.stream(fed.seed, "held out").permutation(n)
    return np.sort(order[int(share * n) :]), np.sort(order[: int(share * n)])


def fit_targets(
    fed: Federation,
    architecture: str,
    params: Params,
    data: Paired,
    loss: Callable[[Tensor, Any], Tensor],
    *key: str | int,
    holdout: float = 0.0,
    patience: int = 0,
    watch: Average | None = None,
    **how: Any,
) -> Params:
    """Train a server's model on the targets of `data`, and return its parameters.

    Call it inside `Federation.on_root`.

    loss: (logits, targets) -> scalar, with the targets of a batch in the form of `data`.
    holdout: share of the data held out. With holdout > 0 the parameters that are best on these are
    returned, and training ends after `patience` steps without improvement.
    watch: with holdout = 0, the average to return instead of the last parameters.
    how: further arguments of `fit`.
    """
    module, (rows, apart) = fed.module(architecture), split_holdout(fed, len(data), holdout)

    def batch(which: np.ndarray) -> tuple[Tensor, Tensor]:
        x, target = data.batch(rows[which])
        return fed.prepare(x), target

    def missed(current: Params) -> float:
        answers = outputs(fed, predictor(fed, architecture, current), data.pick(apart))
        module.model.train()
        return float(loss(answers, data.soft[torch.from_numpy(apart).to(data.soft.device)]))

    looks = Watch(missed, params, patience) if len(apart) else watch
    module.model.train()

    def objective(current: Params, part: tuple[Tensor, Tensor]) -> Tensor:
        return loss(forward(fed, module, current, part[0]), part[1])

    return fit(
        fed,
        params,
        objective,
        batch,
        len(rows),
        *key,
        trained=parameters(module),
        watch=looks,
        **how,
    )


@torch.no_grad()
def recalibrate(fed: Federation, architecture: str, params: Params, data: Shard) -> Params:
    """Return a server's model with the batch statistics of these examples.

    The statistics of a layer of batch normalisation are the mean over batches of evaluate.batch of
    the statistics of its input. The layers before it normalise by their batch, and there is no
    dropout. A model without such layers is returned as it is.
    """
    module = fed.module(architecture)
    norms = [m for m in module.model.eval().modules() if isinstance(m, _BatchNorm)]
    if not norms:
        return params
    momenta = [norm.momentum for norm in norms]
    for name, value in params.items():
        module.view(name).copy_(value)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
        norm.train()
    outputs(fed, module.model, data)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()
    measured = module.items(lambda name: not parameters(module)(name))
    return Params({**params, **measured.clone()})
