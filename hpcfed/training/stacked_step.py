"""The weights of several clients side by side, and a step of all of them at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from hpcfed.core.aligned import cut, padded
from hpcfed.training.recorded_step import Objective, Whole, alike

if TYPE_CHECKING:
    from hpcfed.models.flat import Skeleton

StackedStep = Callable[[Sequence[Tensor]], tuple[Tensor, list[Tensor]]]


class Stack:
    """The weights of G clients of one architecture, by name [G, *shape].

    It takes the place of a Skeleton.
    """

    def __init__(self, skeleton: Skeleton, G: int):
        self.model, self.layout, self.G = skeleton.model, skeleton.layout, G
        shapes = [(G, math.prod(shape)) for shape in self.layout.shapes]
        self.flat = torch.zeros(sum(map(padded, shapes)), device=skeleton.flat.device)
        self.parts = cut(self.flat, shapes)
        forms = zip(self.parts, self.layout.shapes, self.layout.strides, strict=True)
        blocks = [
            part.as_strided((G, *shape), (part.shape[1], *stride)) for part, shape, stride in forms
        ]
        self.blocks = dict(zip(self.layout.names, blocks, strict=True))

    def view(self, name: str) -> Tensor:
        """Return all clients' tensors of this name."""
        return self.blocks[name]

    def load(self, received: Sequence[Mapping[str, Tensor]]) -> None:
        """Copy in the clients' weights, one mapping for each client, or one for all."""
        for name, block in self.blocks.items():
            block.copy_(torch.stack([weights[name] for weights in received]))

    def rows(self) -> Tensor:
        """Return a copy of the weights, one flat vector for each client, [G, layout.size]."""
        rows = self.flat.new_zeros(self.G, self.layout.size)
        for at, part in zip(self.layout.slots.values(), self.parts, strict=True):
            rows[:, at] = part
        return rows

    def step(self, objective: Objective, dims: Sequence[int | None]) -> StackedStep:
        """Return the function (inputs) -> losses [G], and the gradient by parameter [G, *shape].

        objective: (model, inputs of one client) -> scalar.
        dims: for each input 0 if it has the clients as first dimension, None if all share it.
        The function raises what torch raises if the objective cannot be computed for several
        clients at once, for example because it decides by values, or draws.
        """
        module = Whole(self.model, objective)
        weights = {f"model.{name}": block for name, block in self.blocks.items()}
        blocks = list(self.blocks.values())

        def one(weights: dict[str, Tensor], *inputs: Tensor) -> Tensor:
            return functional_call(module, weights, inputs)

        every = vmap(grad_and_value(one), (0, *dims))

        def step(inputs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
            gradient, losses = every(weights, *inputs)
            return losses, list(map(alike, gradient.values(), blocks))

        return step
