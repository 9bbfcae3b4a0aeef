"""Clients' data and models in plain torch, with which tests compute a method's rounds once more.

Clients take steps of plain SGD, each on all of their examples. Such rounds agree with hpcfed's up
to rounding.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.comm import Serial
from hpcfed.core.params import Params
from hpcfed.engine.rounds import Rounds
from tests.contract import toy

STEPS, LR = 2, 0.1
PLAIN = (  # full batches have one order
    *("--local.optimiser", "sgd", "--local.lr", str(LR), "--local.batch", "1000"),
)
FULL = (  # one full batch per round and client, all clients, networks without dropout
    *("--models.mix", "mlp,fedhenn-1", *PLAIN),
    *("--participation", "1", "--local.augment", "none"),
)
FLAGS = (
    *("--models.mix", "mlp", *PLAIN),
    *("--rounds", "2", "--evaluate.every", "1000", "--evaluate.before", "false"),
)
TWO = ("--local.steps", str(STEPS))
Objective = Callable[[Any, Tensor, Tensor], Tensor]  # of a model, inputs and labels


def cross_entropy(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def batch_of(rounds: Rounds, k: int) -> tuple[Tensor, Tensor]:
    """All training examples of client k, prepared, and their labels."""
    client = rounds.fed.clients[k]
    x, y = client.train.batch(np.arange(client.n))
    return rounds.fed.prepare(x), y


def models_of(rounds: Rounds) -> dict[int, Any]:
    """Copies of the clients' models."""
    return {k: deepcopy(client.model.train()) for k, client in rounds.fed.clients.items()}


def gradient(value: Tensor, *modules: nn.Module) -> list[tuple[str, Tensor, Tensor]]:
    """The name of each parameter of the modules, the parameter, and the gradient by it."""
    named = [pair for module in modules for pair in module.named_parameters()]
    slopes = torch.autograd.grad(
        value, [leaf for _, leaf in named], allow_unused=True, materialize_grads=True
    )
    return [(name, leaf, slope) for (name, leaf), slope in zip(named, slopes, strict=True)]


def descend(
    value: Tensor,
    *modules: nn.Module,
    lr: float = LR,
    only: Callable[[str], bool] = lambda name: True,
) -> None:
    """One step of plain gradient descent of the modules' parameters of these names."""
    with torch.no_grad():
        for name, leaf, slope in gradient(value, *modules):
            leaf -= lr * slope if only(name) else 0


def assert_models_agree(rounds: Rounds, models: dict[int, nn.Module], tolerance: float) -> None:
    for k, module in models.items():
        weights = rounds.fed.clients[k].params()
        for name, value in module.state_dict().items():
            assert torch.allclose(weights[name], value, rtol=0, atol=tolerance), (k, name)


def discrepancy(a: Tensor, b: Tensor) -> Tensor:
    """The maximum mean discrepancy of the rows of a and b, for kernels of four variances."""
    total = torch.zeros(())
    for x, y, factor in ((a, a, 1), (b, b, 1), (a, b, -2)):
        squares = (x[:, None] - y).square().sum(2)
        for variance in (10, 15, 20, 50):
            total = total + factor * torch.exp(-squares / (2 * variance)).mean()
    return total


class Referee:
    """A run of a method whose clients have one architecture, and their training in plain torch.

    flags: beside FLAGS, which may replace them.
    """

    def __init__(self, method: str, *flags: str):
        self.rounds = toy.start(Serial(), toy.given(method, *FLAGS, *flags))
        self.fed = self.rounds.fed
        self.model: Any = models_of(self.rounds)[0]

    def initial(self, k: int = 0) -> Params:
        return self.fed.initial(k=k)

    def run(self) -> list[list[int]]:
        """Run the method's two rounds, and return their cohorts."""
        rows = [self.rounds.step()[0] for _ in range(2)]
        return [np.flatnonzero(row["clients/cohort"]).tolist() for row in rows]

    def with_weights(self, w: Mapping[str, Tensor]) -> Any:
        """The model in plain torch, with these weights."""
        self.model.load_state_dict(dict(w), strict=False)
        return self.model

    def loss(self, k: int, w: Mapping[str, Tensor]) -> float:
        """The cross-entropy of all of a client's examples, in eval mode."""
        model = self.with_weights(w).eval()
        with torch.no_grad():
            value = cross_entropy(model, *batch_of(self.rounds, k))
        model.train()
        return value.item()

    def gradient(self, k: int, w: Mapping[str, Tensor]) -> Params:
        """The gradient of the cross-entropy on all of a client's examples."""
        model = self.with_weights(w)
        value = cross_entropy(model, *batch_of(self.rounds, k))
        return Params({name: slope for name, _, slope in gradient(value, model)})

    def train(
        self,
        k: int,
        w: Mapping[str, Tensor],
        objective: Objective = cross_entropy,
        only: Callable[[str], bool] = lambda name: True,
        steps: int = STEPS,
    ) -> Params:
        """The model of a client after its local steps from w."""
        model, batch = self.with_weights(w), batch_of(self.rounds, k)
        for _ in range(steps):
            descend(objective(model, *batch), model, only=only)
        return Params(model.state_dict()).pick(w.__contains__).clone()


def mean(models: Mapping[int, Params], weights: Iterable[float] | None = None) -> Params:
    """The mean of the clients' models, weighted by numbers of examples or by these weights."""
    w = [toy.SIZES[k] for k in models] if weights is None else list(weights)
    parts = [(weight / sum(w)) * model for model, weight in zip(models.values(), w, strict=True)]
    return sum(parts[1:], parts[0])


def equal_mean(models: Mapping[int, Params]) -> Params:
    return mean(models, [1] * len(models))
