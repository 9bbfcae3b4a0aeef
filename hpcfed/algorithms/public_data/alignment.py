"""A pull on representations: a client's, of examples that all parties have, towards a target.

FedHeNN's local objective, apart from what the target is. The gradient goes through as many examples
as there are for each local step, so they pass the model in chunks of evaluate.batch, each computed
anew in the backward pass: memory is that of one chunk, not of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hpcfed.machine.devices import full, raised
from hpcfed.training.batches import chunks

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.federation.federation import Federation
    from hpcfed.models.model import Model
    from hpcfed.training.local import Loss

Distance = Callable[[Tensor], Tensor]  # representation [L, d] -> scalar


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
