"""A pull on representations: a client's, of examples that all parties have, towards a target.

The gradient goes through as many examples as there are for each local step, so they pass the model
in chunks of evaluate.batch, each computed anew in the backward pass: memory is that of one chunk,
not of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hpcfed.machine.devices import full, raised
from hpcfed.training import similarity
from hpcfed.training.batches import chunks
from hpcfed.training.infer import represent
from hpcfed.training.local import sgd

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.federation.federation import Federation
    from hpcfed.models.model import Model
    from hpcfed.training.local import Loss

Distance = Callable[[Tensor], Tensor]  # representation [L, d] -> scalar
GROWTH = {
    "constant": lambda t: 1.0,
    "sqrt": math.sqrt,
    "linear": float,
}  # of the weight; t: rounds from 1


class Alignment(Protocol):
    """What a method says of the pull."""

    # homogeneous: towards the model received, else towards a mean kernel, if any
    setting: Literal["heterogeneous", "homogeneous"]
    eta0: float
    schedule: Literal["sqrt", "constant", "linear"]  # of GROWTH
    align_every: int
    distance: Literal["cka", "procrustes"]
    kernel: Literal["linear", "rbf"]
    bandwidth: float


def train(
    fed: Federation,
    client: Client,
    loss: Loss,
    t: int,
    rad: Shard,
    mean: Tensor | None,
    how: Alignment,
) -> None:
    """Local training with the pull: loss + eta0 f(t) distance; eta0 = 0 is local training as it is.

    rad: the examples of the pull.  mean: as `distance_to` takes it.  Makhija et al., ICML 2022,
    eqs. 5 and 6.
    """
    if how.eta0 and (mean is not None or how.setting == "homogeneous"):
        weight = how.eta0 * GROWTH[how.schedule](t + 1)
        loss = add_alignment(
            fed,
            client,
            loss,
            rad,
            distance_to(fed, client, rad, mean, how),
            weight,
            how.align_every,
        )
    sgd(fed, client, t, loss)


def add_alignment(
    fed: Federation,
    client: Client,
    loss: Loss,
    data: Shard,
    distance: Distance,
    weight: float,
    every: int = 1,
) -> Loss:
    """A loss with weight * distance of the client's representations of the data on top.

    every: only the first of so many steps has the term, at the same weight.
    """
    steps = count()

    def whole(model: Model, x: Any, y: Tensor) -> Tensor:
        value = loss(model, x, y)  # first, for it moves the batch statistics that the term reads
        if next(steps) % every:
            return value
        z = raised(compute_representations(fed, client, data))
        with full(z.device):  # in bfloat16 the distance would be one of roundings
            return value + weight * distance(z)

    return whole


def compute_representations(fed: Federation, client: Client, data: Shard) -> Tensor:
    """The client's representations of these examples, [n, d], in eval mode and with gradient;
    counted as its work.
    """
    model = client.model

    def chunk(rows: Any) -> Tensor:
        with eval_mode(model):
            return model.body(fed.prepare(data.batch(rows)[0]))

    fed.tallies[client.id].work += len(data)
    again = partial(checkpoint, chunk, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([again(rows) for rows in chunks(fed, len(data))])


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Inside, the model is as in evaluation: it draws nothing and leaves its batch statistics
    alone.

    Recurrent layers without dropout work alike in both modes and stay in training: cuDNN wants that
    for gradients.
    """
    training = model.training
    model.eval()
    for module in model.modules():
        module.training = isinstance(module, nn.RNNBase) and not module.dropout
    try:
        yield
    finally:
        model.train(training)


def distance_to(
    fed: Federation, client: Client, rad: Shard, mean: Tensor | None, how: Alignment
) -> Distance:
    """1 - CKA to the mean kernel, which the client receives, or to its own representations as they
    are now.

    mean: [L, L], of `similarity.normalise_kernel`; None: the client's own, of the model that it
    received.
    """
    if mean is not None:
        return cka_to(fed.down(client, mean), how)
    z = represent(fed, client, rad)
    if how.distance == "procrustes":
        return partial(similarity.procrustes, b=z)
    if how.kernel == "linear":
        return lambda a: 1 - similarity.linear_cka(a, z)
    return cka_to(similarity.normalise_kernel(similarity.rbf_kernel(z, how.bandwidth)), how)


def cka_to(target: Tensor, how: Alignment) -> Distance:
    """1 - CKA to a kernel that `similarity.normalise_kernel` made."""
    if how.kernel == "linear":
        return lambda z: 1 - similarity.cka_to_kernel(z, target)
    return lambda z: 1 - similarity.cka(similarity.rbf_kernel(z, how.bandwidth), target)
