"""Sub-models: groups of units that are cut together, and the smaller model of a window.

A unit is a channel of a convolution or an output of a linear layer. A group is a set of units that
must be kept or dropped together: the outputs of a layer, with the weights that normalise and read
them. A residual sum makes one group of two. A window is the choice of units that a sub-model keeps.
The inputs of the model and the classes are never cut; the representation is, as any hidden layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed.core.params import Params
from hpcfed.models import build, for_shapes
from hpcfed.models.model import Model
from hpcfed.models.trace import FIXED, Axis, Trace

SIZES = ("in_channels", "out_channels", "in_features", "out_features", "num_features")
Choose = Callable[[int, int], np.ndarray]  # (size of a group, number) -> that many of its units
Choice = Mapping[int, np.ndarray]  # chosen units by group; of other groups all
# kept indices of each cut dimension, by name of the tensor; others are whole
Window = dict[str, tuple[np.ndarray, ...]]


def first(size: int, n: int) -> np.ndarray:
    """Return the first n units of a group: HeteroFL's and FjORD's choice."""
    return np.arange(n)


def roll_units(start: int) -> Choose:
    """Return the choice of the units start, start + 1, ... of each group: FedRolex's choice.

    After the last unit of a group follows its first.
    """
    return lambda size, n: (start + np.arange(n)) % size


def draw_units(g: np.random.Generator) -> Choose:
    """Return the choice of units drawn without replacement from each group.

    With the same stream, the units of a smaller width are among those of a larger one.
    """
    return lambda size, n: g.permutation(size)[:n]


@dataclass(frozen=True)
class Units:
    """The groups of units of a model, and their positions in its tensors.

    sizes: number of units by group.
    axes: by the name of a parameter or float buffer the content of its first dimensions.
    """

    sizes: dict[int, int]
    axes: dict[str, tuple[Axis, ...]]

    def window(self, width: float, choose: Choose = first) -> Window:
        """Return the positions of the chosen units in each tensor that is cut.

        ceil(width size) units of each group are chosen. They are sorted, so that a choice of all
        units is the model itself.
        """
        return self.places(
            {
                group: np.sort(choose(size, count_units(size, width)))
                for group, size in self.sizes.items()
            }
        )

    def places(self, choice: Choice) -> Window:
        """Return the positions of these units in each tensor that is cut.

        They are in the order of the choice.
        """
        cut = {
            name: axes
            for name, axes in self.axes.items()
            if any(s.group != FIXED for a in axes for s in a)
        }
        return {name: tuple(indices(axis, choice) for axis in axes) for name, axes in cut.items()}


def count_units(size: int, width: float) -> int:
    """Return how many units of a group a sub-model of this width has, at least 1."""
    return max(1, math.ceil(width * size - 1e-9))


def indices(axis: Axis, choice: Choice) -> np.ndarray:
    """Return the positions in a dimension that its chosen units fill."""
    places, start = [], 0
    for group, size, repeat in axis:
        units = choice.get(group, np.arange(size))
        places.append((start + units[:, None] * repeat + np.arange(repeat)).reshape(-1))
        start += size * repeat
    return np.concatenate(places)


def take(params: Mapping[str, Tensor], window: Window) -> Params:
    """Return the part of each tensor that is in the window.

    It is a view if its units are adjacent, else a copy.
    """
    return Params(
        {
            name: piece(value, window[name]) if name in window else value
            for name, value in params.items()
        }
    )


def place(params: Mapping[str, Tensor], window: Window, units: Units) -> Params:
    """Return the model in which `take` finds these tensors, with 0 elsewhere.

    units: of that model.
    """
    new = Params(params)
    for name, value in params.items():
        if name in window:
            shape = [sum(s.size * s.repeat for s in axis) for axis in units.axes[name]]
            new[name] = value.new_zeros(*shape, *value.shape[len(shape) :])
            at = torch.meshgrid(*map(torch.from_numpy, window[name]), indexing="ij")
            new[name][tuple(i.to(value.device) for i in at)] = value
    return new


def piece(value: Tensor, axes: tuple[np.ndarray, ...]) -> Tensor:
    """Return the sub-tensor at these indices of the first dimensions."""
    for dim, places in enumerate(axes):
        start, n = int(places[0]), len(places)
        if (np.diff(places) == 1).all():
            value = value.narrow(dim, start, n)
        else:
            value = value.index_select(dim, torch.as_tensor(places, device=value.device))
    return value


def units(model: Model, shape: tuple[int, ...]) -> Units:
    """Return the groups of a model that takes inputs of this shape.

    They are found by one pass over an empty example. Raises ConfigError for a model with a layer
    that it does not know how to cut.
    """
    trace = Trace(model)
    trace.run(shape)
    groups = {s.group for axes in trace.axes.values() for axis in axes for s in axis} - {FIXED}
    return Units({group: trace.sizes[group] for group in sorted(groups)}, trace.axes)


@cache
def structure(name: str, shape: tuple[int, ...], classes: int, d: int) -> Units:
    """Return the groups of a registered model, which are the same for all weights.

    Raises ConfigError as `units`.
    """
    with for_shapes(name):
        model = build(name, shape, classes, d)
    return units(model, shape)  # type: ignore[arg-type]  # no pair


@torch.no_grad()
def narrow(model: Model, shape: tuple[int, ...], width: float) -> Model:
    """Make the model smaller in place, and return it.

    The first ceil(width size) units of each group stay. Raises ConfigError as `units`, and for a
    width outside 0..1.
    """
    window = units(model, shape).window(width)
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, value in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(piece(value, window.get(prefix + name, ())).clone()))
        for name, value in module.named_buffers(recurse=False):
            setattr(module, name, piece(value, window.get(prefix + name, ())).clone())
        resize(module)
    return model


def resize(module: nn.Module) -> None:
    """Set a layer's size attributes to the sizes of its weights."""
    if isinstance(weight := getattr(module, "weight", None), Tensor):
        outputs, inputs = weight.shape[0], weight.shape[1] if weight.dim() > 1 else 0
        for name in SIZES:
            if hasattr(module, name):
                setattr(module, name, inputs if name.startswith("in_") else outputs)
