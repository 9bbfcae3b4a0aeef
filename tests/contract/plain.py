"""Clients' data and models as plain torch has them, for two rounds of a method written out by hand.

Such a round agrees with hpcfed's up to rounding: full batches have one order, and `FULL` has one
step of plain gradient descent per round.
"""

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed.engine.rounds import Rounds

LR = 0.1
FULL = (  # one full batch per round and client, all clients, networks without dropout
    *("--models.mix", "mlp,fedhenn-1", "--local.optimiser", "sgd", "--local.lr", str(LR)),
    *("--participation", "1", "--local.batch", "1000", "--local.augment", "none"),
)


def batch_of(rounds: Rounds, k: int) -> tuple[Tensor, Tensor]:
    """All examples of client k, prepared, and their labels."""
    client = rounds.fed.clients[k]
    x, y = client.train.batch(np.arange(client.n))
    return rounds.fed.prepare(x), y


def models_of(rounds: Rounds) -> dict[int, Any]:
    """Copies of the clients' models."""
    return {k: deepcopy(client.model.train()) for k, client in rounds.fed.clients.items()}


def descend(value: Tensor, *modules: nn.Module, lr: float = LR) -> None:
    """One step of plain gradient descent of all parameters of the modules."""
    leaves = [p for module in modules for p in module.parameters()]
    slopes = torch.autograd.grad(value, leaves, allow_unused=True)
    with torch.no_grad():
        for leaf, slope in zip(leaves, slopes, strict=True):
            leaf -= 0 if slope is None else lr * slope


def assert_models_agree(rounds: Rounds, models: dict[int, nn.Module], tolerance: float) -> None:
    for k, module in models.items():
        weights = rounds.fed.clients[k].params()
        for name, value in module.state_dict().items():
            assert torch.allclose(weights[name], value, rtol=0, atol=tolerance), (k, name)
