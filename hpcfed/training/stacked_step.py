"""The weights of several clients side by side, and a recorded step of all of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from hpcfed.models.flat import Skeleton
from hpcfed.training.recorded_step import Objective, RecordedStep, Whole, graph

if TYPE_CHECKING:
    from torch.fx import GraphModule


class Stack:
    """The weights of G clients of one architecture, by name [G, *shape], without gaps.

    It takes the place of a Skeleton.
    """

    def __init__(self, skeleton: Skeleton, G: int):
        self.model, self.layout, self.G = skeleton.model, skeleton.layout, G
        self.flat = torch.empty(G * self.layout.size, device=skeleton.flat.device)
        self.recorded: dict[
            Hashable, RecordedStep | str
        ] = {}  # recordings of steps, or the reason why there is none
        parts = self.flat.split([G * (at.stop - at.start) for at in self.layout.slots.values()])
        self.parts = [part.view(G, -1) for part in parts]
        forms = zip(self.parts, self.layout.shapes, self.layout.strides, strict=True)
        blocks = [
            part.as_strided((G, *shape), (part.shape[1], *stride)) for part, shape, stride in forms
        ]
        self.blocks = dict(zip(self.layout.names, blocks, strict=True))

    def view(self, name: str) -> Tensor:
        """Return all clients' tensors of this name."""
        return self.blocks[name]

    def load(self, given: Sequence[Mapping[str, Tensor]]) -> None:
        """Copy in the clients' weights, one mapping for each client, or one for all."""
        for name, block in self.blocks.items():
            block.copy_(torch.stack([weights[name] for weights in given]))

    def rows(self) -> Tensor:
        """Return a copy of the weights, one flat vector for each client, [G, P]."""
        return torch.cat(self.parts, dim=1)


class StackedStep(RecordedStep):
    """One recorded step of all clients of a stack: (other inputs) -> losses [G], and gradients.

    inputs: as those of a RecordedStep, with the clients as first dimension if dims is 0, or shared
    by all if it is None.
    """

    def __init__(
        self,
        stack: Stack,
        objective: Objective,
        inputs: Sequence[Tensor],
        dims: Sequence[int | None],
    ):
        state = list(stack.blocks.values())
        self.keep(record(stack, objective, inputs, dims), state, state)


def record(
    stack: Stack, objective: Objective, inputs: Sequence[Tensor], dims: Sequence[int | None]
) -> GraphModule:
    """Return the step as a graph of (weights, inputs) -> [losses, gradients]; computes nothing."""
    whole, names = Whole(stack.model, objective), [f"model.{name}" for name in stack.blocks]

    def one(weights: dict[str, Tensor], *inputs: Tensor) -> Tensor:
        return functional_call(whole, weights, inputs)

    def step(*given: Tensor) -> list[Tensor]:
        weights = dict(zip(names, given, strict=False))
        gradient, value = vmap(grad_and_value(one), (0, *dims))(weights, *given[len(names) :])
        return [value, *gradient.values()]

    return graph(step, stack.model, list(stack.blocks.values()), inputs)
