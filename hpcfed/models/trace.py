"""A pass of a model over an empty example, which finds the connected units of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from hpcfed.core.errors import ConfigError
from hpcfed.models.layers import Conv2d

FIXED = -1  # the group of units that are never cut: inputs and classes
ASKS = {"dim", "size", "numel", "__get__"}  # calls that return no tensor
SAME = {
    "relu",
    "relu_",
    "max_pool2d",
    "avg_pool2d",
    "adaptive_avg_pool2d",
    "dropout",
    "dropout_",
}  # elementwise in the units
JOINS = {"flatten", "cat", "add", "add_", "__add__", "__iadd__", "batch_norm", "linear", "conv2d"}


class Stretch(NamedTuple):
    """A part of a dimension: the units of one group.

    repeat: number of adjacent places of each unit, as in a flattened map.
    """

    group: int
    size: int
    repeat: int = 1


Axis = tuple[Stretch, ...]  # the content of one dimension


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Inside, convolutions of very small maps multiply their whole weight, as others do."""
    layers = [layer for layer in model.modules() if isinstance(layer, Conv2d)]
    for layer in layers:
        layer.forward = partial(nn.Conv2d.forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class Trace(TorchFunctionMode):
    """One pass of a model that follows the units through every call of torch.

    After `run`, axes has the content of the first dimensions of each parameter and float buffer,
    and sizes the number of units of each group. In tensors that are not parameters only dimension
    1, the units, is followed.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.kind = model, type(model).__name__
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        # not on torch's meta device, which loads the compiler and sympy, a second on each rank
        self.tensors = {
            name: torch.zeros(value.shape, dtype=value.dtype, device="cpu")
            for name, value in tensors.items()
        }
        self.names = {id(v): name for name, v in self.tensors.items()}
        self.sizes: dict[int, int] = {}
        self.joined: dict[int, int] = {}  # a group that became part of an earlier one
        self.axes: dict[str, tuple[Axis, ...]] = {}
        self.content: dict[int, Axis] = {}  # of the units of each tensor that was computed
        self.alive: list[Tensor] = []  # so that no two tensors have one id

    def run(self, shape: tuple[int, ...]) -> None:
        """Follow a batch of one example of this shape through the model.

        Raises ConfigError if the model cannot be followed; see `refuse`.
        """
        x, training = torch.zeros(1, *shape, device="cpu"), self.model.training
        self.keep(x, (Stretch(FIXED, shape[0]),))
        self.model.eval()
        with torch.no_grad(), whole_weights(self.model), self:
            functional_call(self.model, self.tensors, (x,))
        self.model.train(training)
        classes = (Stretch(FIXED, len(self.tensors["head.weight"])),)
        self.axes["head.weight"] = (classes, *self.axes["head.weight"][1:])
        self.axes["head.bias"] = (classes,)
        self.axes = {
            name: tuple(map(self.resolve_groups, axes)) for name, axes in self.axes.items()
        }

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name, kwargs = func.__name__, kwargs or {}
        if name not in ASKS | SAME | JOINS:
            self.refuse(name)
        out = func(*args, **kwargs)
        if isinstance(out, Tensor):
            self.keep(out, self.follow(name, out, args, kwargs))
        return out

    def follow(self, name: str, out: Tensor, args: tuple, kwargs: dict) -> Axis:
        """Return the units of a function's output. Raises ConfigError if they are not known."""
        if name in SAME:
            return self.content[id(args[0])]
        if name == "flatten" and (args[1:] or (0,))[0] == 1:
            spread = out.shape[1] // sum(
                size * repeat for _, size, repeat in self.content[id(args[0])]
            )
            return tuple(
                Stretch(group, size, repeat * spread)
                for group, size, repeat in self.content[id(args[0])]
            )
        if name == "cat" and (args[1:] or (kwargs.get("dim"),))[0] == 1:
            return sum((self.content[id(part)] for part in args[0]), ())
        if name in ("add", "add_", "__add__", "__iadd__"):
            return self.tie(self.content[id(args[0])], self.content[id(args[1])])
        if name == "batch_norm":
            return self.norm(args, kwargs)
        if name == "linear" or (name == "conv2d" and args[6] == 1):
            return self.layer(*args[:3])
        return self.refuse(f"{name} in groups" if name == "conv2d" else name)

    def layer(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Axis:
        """Record a convolution or linear layer, whose outputs are a new group."""
        group = len(self.sizes)
        self.sizes[group] = len(weight)
        outputs = (Stretch(group, len(weight)),)
        self.axes[self.names[id(weight)]] = (outputs, self.content[id(x)])
        if bias is not None:
            self.axes[self.names[id(bias)]] = (outputs,)
        return outputs

    def norm(self, args: tuple, kwargs: dict) -> Axis:
        """Record batch normalisation; its tensors belong to the units that it normalises."""
        tensors = (*args[1:], kwargs.get("weight"), kwargs.get("bias"))
        for value in tensors:
            if id(value) in self.names:
                self.axes[self.names[id(value)]] = (self.content[id(args[0])],)
        return self.content[id(args[0])]

    def tie(self, a: Axis, b: Axis) -> Axis:
        """Record a sum; the units of both terms are kept or dropped together."""
        if [s[1:] for s in a] != [s[1:] for s in b]:
            return self.refuse("a sum of different units")
        for (p, *_), (q, *_) in zip(a, b, strict=True):
            p, q = self.root(p), self.root(q)
            if FIXED in (p, q) and p != q:
                return self.refuse("a sum with the inputs")
            if p != q:
                self.joined[max(p, q)] = min(p, q)
        return self.resolve_groups(a)

    def resolve_groups(self, axis: Axis) -> Axis:
        """Return the axis with each group replaced by the earliest group that it was tied to."""
        return tuple(stretch._replace(group=self.root(stretch.group)) for stretch in axis)

    def root(self, group: int) -> int:
        return self.root(self.joined[group]) if group in self.joined else group

    def keep(self, out: Tensor, axis: Axis) -> None:
        self.content[id(out)] = axis
        self.alive.append(out)

    def refuse(self, what: str) -> Any:
        """Raise ConfigError, because it is not known how to cut a model with this operation."""
        body = type(getattr(self.model, "body", self.model)).__name__
        raise ConfigError(
            f"the model {body} cannot be cut to a smaller width: {what} mixes its units in a way "
            f"that is not known; "
            "set models.widths = [1] or take another model"
        )
