"""The loop that a researcher writes: modules, torch.optim, state_dicts that are averaged; data in
memory as floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from cases import Case
from torch import Tensor, nn

from hpcfed.core.rng import torch_stream

State = dict[str, Tensor]
Batches = Sequence[tuple[Tensor, Tensor]]


class RawLoop:
    """FedAvg without a framework: one model, a global state_dict, one epoch of each client in each
    round.
    """

    def __init__(self, case: Case):
        self.case, self.model, self.losses = case, case.module(), {}
        self.state = copied(self.model.state_dict())
        self.data, self.order = case.tensors(), torch_stream(0, "order")

    def round(self) -> None:
        """Each client trains from the global state; the mean of what they end with is the new
        one.
        """
        total: State = {}
        for k, (x, y) in enumerate(self.data):
            self.model.load_state_dict(self.state)
            self.losses[k] = self.train(x, y)
            add(
                total, self.model.state_dict(), len(y) / sum(len(labels) for _, labels in self.data)
            )
        self.state = {name: v.to(self.state[name].dtype) for name, v in total.items()}

    def train(self, x: Tensor, y: Tensor) -> float:
        """One epoch. Returns the mean loss."""
        self.model.train()
        optimiser, total = self.optimiser(), 0.0
        for rows in torch.randperm(len(y), generator=self.order).split(self.case.batch):
            optimiser.zero_grad()
            loss = self.loss(x[rows], y[rows])
            loss.backward()
            optimiser.step()
            total += loss.item() * len(rows)
        return total / len(y)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def optimiser(self) -> torch.optim.Optimizer:
        kind: Callable[..., torch.optim.Optimizer] = {
            "sgd": torch.optim.SGD,
            "adam": torch.optim.Adam,
        }[self.case.optimiser]
        return kind(self.model.parameters(), lr=self.case.lr)


def copied(state: State) -> State:
    return {name: v.detach().clone() for name, v in state.items()}


def add(total: State, state: State, weight: float) -> None:
    """total += weight * state."""
    for name, v in state.items():
        part = v * weight
        total[name] = total[name] + part if name in total else part


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
