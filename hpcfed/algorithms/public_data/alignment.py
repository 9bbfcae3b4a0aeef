"""A loss term that draws a client's representations of shared examples towards a target.

This is FedHeNN's local objective, whatever the target is. Each local step takes the gradient
through all shared examples. They therefore pass the model in chunks of evaluate.batch, and the
backward pass computes each chunk again: memory is needed for one chunk, not for all examples.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hpcfed import Client, Federation, Model, Shard
from hpcfed.models.precision import full, raised
from hpcfed.training.infer import in_chunks
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
    """Return the loss plus weight * distance of the client's representations of the data.

    every: only the first of every this many steps has the term, at the same weight.
    """
    steps = count()

    def whole(model: Model, x: Any, y: Tensor) -> Tensor:
        # first, because it moves the batch statistics that the term reads
        value = loss(model, x, y)
        if next(steps) % every:
            return value
        z = raised(compute_representations(fed, client, data))
        with full(z.device):  # in bfloat16 rounding errors would dominate the distance
            return value + weight * distance(z)

    return whole


def compute_representations(fed: Federation, client: Client, data: Shard) -> Tensor:
    """Return the client's representations of these examples, [n, d], in eval mode with gradient.

    The passes are counted as the client's work.
    """
    model = client.model

    def represented(x: Any) -> Tensor:
        with eval_mode(model):
            return model.body(x)

    fed.tallies[client.id].work += len(data)
    again = partial(checkpoint, represented, use_reentrant=False, preserve_rng_state=False)
    return in_chunks(fed, len(data), lambda rows: again(fed.prepare(data.batch(rows)[0])))


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode inside the context, and restore it afterwards.

    It then draws no random numbers and leaves its batch statistics alone. Recurrent layers without
    dropout work alike in both modes and stay in training mode, because cuDNN requires that for
    gradients.
    """
    training = model.training
    model.eval()
    for module in model.modules():
        module.training = isinstance(module, nn.RNNBase) and not module.dropout
    try:
        yield
    finally:
        model.train(training)
