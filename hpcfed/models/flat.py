"""One model is one flat buffer: its parameters and float buffers are views into one vector.

A rank keeps one `Skeleton` per architecture and copies the flat vectors of its clients in and out;
one optimiser step, one upload, one checkpoint record is then one operation on one vector, not one a
tensor.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from hpcfed.core.params import Params
from hpcfed.models.model import Model, Pair


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a model lies in its flat vector: parameters first, then float buffers,
    no gaps.

    Two models of one architecture and one memory format have equal layouts. A model in torch's
    channels-last format keeps it, its convolutions' weights then lie as [outputs, height, width,
    inputs]: so read a flat vector by `views` and make one by `flatten`, which are right for every
    format.

    shapes, strides: of params, then of buffers.  integers: integer buffers (batch norms'
    num_batches_tracked), no part of the flat vector: with a fixed momentum they never enter a
    result.
    """

    params: tuple[str, ...]
    buffers: tuple[str, ...]
    integers: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        params, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        frozen = getattr(model, "frozen", ())  # constants, see `models.parts`
        buffers = {name: b for name, b in buffers.items() if name not in frozen}
        floats = {name: b for name, b in buffers.items() if b.is_floating_point()}
        integers = tuple(name for name in buffers if name not in floats)
        tensors = [*params.values(), *floats.values()]
        shapes, strides = tuple(tuple(t.shape) for t in tensors), tuple(t.stride() for t in tensors)
        return cls(tuple(params), tuple(floats), integers, shapes, strides)

    @property
    def names(self) -> tuple[str, ...]:
        return self.params + self.buffers

    @cached_property
    def slots(self) -> dict[str, slice]:
        """Where each tensor lies, by name."""
        ends = [0, *accumulate(map(prod, self.shapes))]
        return {name: slice(*ends) for name, ends in zip(self.names, pairwise(ends), strict=True)}

    @property
    def size(self) -> int:
        """Values in the flat vector."""
        return sum(map(prod, self.shapes))

    @property
    def n_params(self) -> int:
        """Values in the flat gradient: those of the parameters, which come first."""
        return sum(map(prod, self.shapes[: len(self.params)]))

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors of a flat vector by name, as views.

        Of a vector [n_params] the parameters alone.
        """
        names = self.names if len(flat) == self.size else self.params
        parts = zip(names, self.shapes, self.strides, strict=False)
        return {
            name: flat[self.slots[name]].as_strided(shape, stride) for name, shape, stride in parts
        }

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """A new flat vector [size], float32, of these tensors (`model.state_dict()`), copied, on
        the CPU.
        """
        flat = torch.empty(self.size)
        for name, view in self.views(flat).items():
            view.copy_(tensors[name].detach())
        return flat


class Skeleton:
    """A model whose tensors live in one vector, to be lent to one client after the other.

    model: the module itself, moved to `device`, in the memory format in which it came; its
    parameters and float buffers are views into flat [size], float32, its parameters' gradients
    views into grad [n_params]. The gradients stay attached as long as they are cleared by
    `zero_grad` here, never by that of the model or the optimiser, which drop them, and as long as
    backward is not called with create_graph (`torch.autograd.grad` serves there). A parameter that
    a loss does not reach has gradient 0, not None.
    """

    def __init__(self, model: Model | Pair, device: torch.device | str = "cpu"):
        self.model = cast(Model, model.to(device))  # a pair represents and classifies as one
        self.layout = Layout.of(model)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.flat = self.layout.flatten(tensors).to(device)
        self.tapes: dict[Hashable, Any] = {}  # recordings of local steps, see training.tape
        self._views = self.layout.views(self.flat)
        for name, view in self._views.items():
            tensors[name].data = view

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The module's parameters by name."""
        return dict(self.model.named_parameters())

    @cached_property
    def grad(self) -> Tensor:
        """The flat gradient, [n_params], of which the parameters' gradients are views.

        Made when first used.
        """
        flat = torch.zeros_like(self.flat[: self.layout.n_params])
        for name, view in self.layout.views(flat).items():
            self.parameters[name].grad = view
        return flat

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """The parts of the flat gradient by parameter, as views."""
        return self.layout.views(self.grad)

    def view(self, name: str) -> Tensor:
        """The parameter or buffer of this name, without gradient.

        Writing to it changes the model.
        """
        return self._views[name]

    def items(self, which: Callable[[str], bool]) -> Params:
        """The parameters and buffers whose names are wanted, as views.

        Clone what is to outlive the loan.
        """
        return Params({name: view for name, view in self._views.items() if which(name)})

    def load(self, flat: Tensor) -> None:
        """Make the model that of the client to whom this flat vector [size] belongs.

        Copies, keeps no link.

        Integer buffers stay as they are (see Layout). Raises RuntimeError if the size differs.
        """
        self.flat.copy_(flat)

    def zero_grad(self) -> None:
        """All gradients to 0, in place."""
        self.grad.zero_()
