"""A model as one flat buffer: its parameters and float buffers are views into one vector.

A rank has one `Skeleton` per architecture and copies the flat vectors of its clients in and out.
One optimiser step, one upload, one checkpoint record is then one operation on one vector, not one
for each tensor.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from hpcfed.core import user_code
from hpcfed.core.aligned import padded
from hpcfed.core.params import Params, first_misfit
from hpcfed.core.wording import join_few
from hpcfed.models.model import Model, Pair

BLANK = 0x7FC0B1A2  # bits of a nan that no computation gives, of a value that nobody has set


@dataclass(frozen=True)
class Layout:
    """The positions of a model's tensors in its flat vector.

    Parameters come first, then float buffers. Each begins at a multiple of 64 bytes, for which many
    kernels are made and without which some fail (see `core.aligned`); the values between two are 0.
    Two models of one architecture and one memory format have equal layouts. A model in torch's
    channels-last format keeps it: the weights of its convolutions then lie as [outputs, height,
    width, inputs]. Read a flat vector by `views` and make one by `flatten`, which are right for
    every format.

    shapes, strides: of params, then of buffers.
    integers: integer buffers (num_batches_tracked of batch normalisation). They are not part of the
    flat vector: with a fixed momentum they never enter a result.
    """

    params: tuple[str, ...]
    buffers: tuple[str, ...]
    integers: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        params, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        frozen = getattr(model, "frozen", ())  # constants, see `models.finetuning`
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
        """The slice of each tensor in the flat vector, by name."""
        starts = accumulate(map(padded, self.shapes), initial=0)
        return {
            name: slice(start, start + prod(shape))
            for name, shape, start in zip(self.names, self.shapes, starts, strict=False)
        }

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return sum(map(padded, self.shapes))

    @property
    def gradient_size(self) -> int:
        """Length of the flat gradient, which has the parameters, the first part of the vector."""
        return sum(map(padded, self.shapes[: len(self.params)]))

    @property
    def n_params(self) -> int:
        """Number of the parameters' values."""
        return sum(map(prod, self.shapes[: len(self.params)]))

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the tensors of a flat vector by name, as views.

        A vector [gradient_size] gives the parameters alone.
        """
        names = self.names if len(flat) == self.size else self.params
        parts = zip(names, self.shapes, self.strides, strict=False)
        return {
            name: flat[self.slots[name]].as_strided(shape, stride) for name, shape, stride in parts
        }

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return a new flat vector with copies of these tensors, [size], float32, on the CPU.

        tensors: by name, such as `model.state_dict()`.
        """
        flat = torch.zeros(self.size)
        for name, view in self.views(flat).items():
            view.copy_(tensors[name].detach())
        return flat


class Skeleton:
    """A model whose tensors live in one vector, used by one client after the other.

    model: the module itself, moved to `device`, in its original memory format. Its parameters and
    float buffers are views into flat [size], float32, and its parameters' gradients views into grad
    [gradient_size].

    Clear gradients by `zero_grad` of this class, never by that of the model or the optimiser, which
    would detach them from grad. For the same reason use `torch.autograd.grad` instead of backward
    with create_graph. A parameter that a loss does not reach has gradient 0, not None.
    """

    def __init__(self, model: Model | Pair, device: torch.device | str = "cpu"):
        self.model = cast(Model, model.to(device))  # a pair represents and classifies as one
        self.layout = Layout.of(model)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.flat = self.layout.flatten(tensors).to(device)
        # captured steps and stacks of clients, see training.graphs and training.stacked
        self.captured: dict[Hashable, Any] = {}
        self._views = self.layout.views(self.flat)
        for name, view in self._views.items():
            tensors[name].data = view

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The module's parameters by name."""
        return dict(self.model.named_parameters())

    @cached_property
    def grad(self) -> Tensor:
        """The flat gradient, [gradient_size], of which the parameters' gradients are views.

        It is made when first used.
        """
        flat = torch.zeros_like(self.flat[: self.layout.gradient_size])
        for name, view in self.layout.views(flat).items():
            self.parameters[name].grad = view
        return flat

    @cached_property
    def _integers(self) -> frozenset[int]:
        """Addresses of the memory of integer buffers, which are not in `flat`."""
        named = dict(self.model.named_buffers())
        return frozenset(named[name].untyped_storage().data_ptr() for name in self.layout.integers)

    @property
    def addresses(self) -> set[int]:
        """Addresses of the memory in which the module's tensors and their gradients lie."""
        vectors = [self.flat, *([self.grad] if "grad" in vars(self) else [])]
        return {vector.untyped_storage().data_ptr() for vector in vectors} | self._integers

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """The parts of the flat gradient by parameter, as views."""
        return self.layout.views(self.grad)

    @torch.no_grad()
    def assign(self, values: Mapping[str, Tensor]) -> None:
        """Overwrite the tensors of these names; on a GPU by a few kernels for all of them.

        Raises OwnError if the model has no such tensors.
        """
        if not values:
            return
        try:
            torch._foreach_copy_([self.view(name) for name in values], list(values.values()))
        except (KeyError, RuntimeError) as error:
            if not (other := first_misfit(values, self._views)):
                raise
            name, shape, wanted_shape = other
            raise user_code.OwnError(
                f"{user_code.caller()}a model is to load {name!r} of shape {shape}, but has one of "
                f"shape {wanted_shape} (None: not at all); it has {join_few(list(self._views), 4)}"
            ) from error

    def view(self, name: str) -> Tensor:
        """Return the parameter or buffer of this name, without gradient.

        Writing to it changes the model.
        """
        return self._views[name]

    def items(self, which: Callable[[str], bool]) -> Params:
        """Return the parameters and buffers with these names, as views.

        which: whether a name is wanted. Clone the tensors to keep them after another client is
        loaded.
        """
        return Params({name: view for name, view in self._views.items() if which(name)})

    def copies(self, which: Callable[[str], bool]) -> Params:
        """Return copies of the parameters and buffers with these names.

        Where all are wanted this is one copy of the flat vector, of which they are views: one
        kernel on a GPU, not one for each tensor.
        """
        if all(map(which, self.layout.names)):
            return Params(self.layout.views(self.flat.clone()))
        return self.items(which).clone()

    def load(self, flat: Tensor) -> None:
        """Copy the flat vector of a client, [size], into the model.

        Integer buffers stay as they are (see Layout). Raises RuntimeError if the size differs.
        """
        self.flat.copy_(flat)

    def blank(self) -> None:
        """Set all values to BLANK."""
        for view in self._views.values():
            view.view(torch.int32).fill_(BLANK)

    @property
    def blanks(self) -> list[str]:
        """Names of the tensors of which a value is BLANK."""
        return [
            name for name, view in self._views.items() if (view.view(torch.int32) == BLANK).any()
        ]

    def zero_grad(self) -> None:
        """Set all gradients to 0, in place."""
        self.grad.zero_()
