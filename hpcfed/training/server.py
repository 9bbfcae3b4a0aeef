"""Training on the server: a few parameters, or a whole module, on data that the server has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from hpcfed import rng
from hpcfed.params import Params

if TYPE_CHECKING:
    from hpcfed.federation import Federation
    from hpcfed.models.flat import Skeleton

Batch = Callable[[np.ndarray], Any]  # positions -> a batch
Loss = Callable[[Params, Any], Tensor]  # parameters, batch -> scalar


def fit(
    fed: Federation, params: Params, loss: Loss, batch: Batch, n: int, *key: str | int, epochs: int, size: int,
    lr: float, optimiser: str = "sgd", momentum: float = 0.0, trained: Callable[[str], bool] = lambda name: True,
) -> Params:  # fmt: skip
    """New parameters after so many epochs over n examples, in batches of `size`; the given ones stay as they are.

    loss: (parameters by name, batch) -> scalar.  batch: positions in 0..n-1 -> a batch.  key: names the order
    of the examples.  optimiser: "sgd" or "adam".  trained: names of the tensors that are; buffers, which only
    a forward pass changes, are none.  Call it inside `Federation.on_root`.
    """
    new = params.clone()
    leaves = [v.requires_grad_() for name, v in new.items() if trained(name)]
    descent = torch.optim.Adam(leaves, lr) if optimiser == "adam" else torch.optim.SGD(leaves, lr, momentum)
    with rng.scoped(fed.seed, *key, "dropout", device=fed.device):
        for rows in orders(fed, n, epochs, size, *key):
            descent.zero_grad()
            loss(new, batch(rows)).backward()
            descent.step()
    return new.clone()


def orders(fed: Federation, n: int, epochs: int, size: int, *key: str | int) -> Iterator[np.ndarray]:
    """The batches of so many epochs, each epoch in a new order: positions in 0..n-1."""
    g = rng.stream(fed.seed, *key, "batches")
    for _ in range(epochs):
        order = g.permutation(n)
        yield from (order[start : start + size] for start in range(0, n, size))


def call(skeleton: Skeleton, params: Params, x: Any) -> Tensor:
    """The module's output with these parameters and buffers in the place of its own."""
    return functional_call(skeleton.model, dict(params), (x,))


def parameters(skeleton: Skeleton) -> Callable[[str], bool]:
    """Whether a name is that of a parameter, not of a buffer."""
    return set(skeleton.layout.params).__contains__
