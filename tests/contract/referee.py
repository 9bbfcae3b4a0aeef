"""Rounds of the toy world in plain torch, with which tests compute a method's rounds once more.

Clients take two steps of plain SGD a round, each on all of their examples.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from hpcfed.comm import Serial
from hpcfed.core.params import Params
from tests.contract import toy

STEPS, LR = 2, 0.1
FLAGS = (
    *("--models.mix", "mlp", "--rounds", "2", "--evaluate.every", "1000"),
    *("--evaluate.before", "false", "--local.optimiser", "sgd", "--local.lr", str(LR)),
    *("--local.batch", "1000"),
)
TWO = ("--local.steps", str(STEPS))
Forward = Callable[[Tensor], Tensor]
Objective = Callable[[Forward, Tensor, Tensor], Tensor]


def cross_entropy(forward: Forward, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(forward(x), y)


class Referee:
    """A run of a method, and its clients in plain torch.

    flags: beside FLAGS, which may replace them.
    """

    def __init__(self, method: str, *flags: str):
        self.rounds = toy.start(Serial(), toy.given(method, *FLAGS, *flags))
        self.fed = self.rounds.fed
        self.model = self.fed.store.skeleton(self.fed.architectures[0]).model

    def initial(self, k: int = 0) -> Params:
        return self.fed.initial(k=k)

    def run(self) -> list[list[int]]:
        """Run the method's two rounds, and return their cohorts."""
        rows = [self.rounds.step()[0] for _ in range(2)]
        return [np.flatnonzero(row["clients/cohort"]).tolist() for row in rows]

    def data(self, k: int) -> tuple[Tensor, Tensor]:
        """All training examples of a client, prepared."""
        x, y = self.fed.clients[k].train.batch(np.arange(self.fed.clients[k].n))
        return self.fed.prepare(x), y

    def gradient(
        self,
        k: int,
        w: Mapping[str, Tensor],
        objective: Objective = cross_entropy,
    ) -> dict[str, Tensor]:
        """The gradient of an objective on all of a client's examples; batch statistics of w follow
        them.
        """
        self.model.train()
        leaves = {n: w[n].clone().requires_grad_() for n in w if self.fed.trainable(n)}
        tensors = {**w, **leaves}
        value = objective(lambda x: functional_call(self.model, tensors, (x,)), *self.data(k))
        return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))

    def train(
        self,
        k: int,
        w: Mapping[str, Tensor],
        objective: Objective = cross_entropy,
        only: Callable[[str], bool] = lambda name: True,
        steps: int = STEPS,
    ) -> Params:
        """The model of a client after its local steps from w."""
        w = Params(w).clone()
        for _ in range(steps):
            for name, slope in self.gradient(k, w, objective).items():
                if only(name):
                    w[name] = w[name] - LR * slope
        return Params(w)


def mean(models: Mapping[int, Params], weights: Iterable[float] | None = None) -> Params:
    """The mean of the clients' models, weighted by numbers of examples or by these weights."""
    w = [toy.SIZES[k] for k in models] if weights is None else list(weights)
    parts = [(weight / sum(w)) * model for model, weight in zip(models.values(), w, strict=True)]
    return sum(parts[1:], parts[0])


def equal_mean(models: Mapping[int, Params]) -> Params:
    return mean(models, [1] * len(models))
