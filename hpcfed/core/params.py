"""Named tensors with the operators + - *, and their partial weighted mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor


class Params(dict[str, Tensor]):
    """Tensors by name, which are added and scaled as one vector.

    A formula then reads as in the paper: `(1 - alpha) * old + alpha * new`. Both sides of + and -
    have the same names.
    Raises KeyError for a missing name.
    """

    def map(self, fn: Callable[[Tensor], Tensor]) -> Params:
        return Params({name: fn(value) for name, value in self.items()})

    def pick(self, wanted: Callable[[str], bool]) -> Params:
        """Return only the tensors with wanted names."""
        return Params({name: value for name, value in self.items() if wanted(name)})

    def clone(self) -> Params:
        """Return a copy that shares no memory with this one."""
        return self.map(lambda value: value.detach().clone())

    def __add__(self, other: Mapping[str, Tensor]) -> Params:
        return Params({name: value + other[name] for name, value in self.items()})

    def __sub__(self, other: Mapping[str, Tensor]) -> Params:
        return Params({name: value - other[name] for name, value in self.items()})

    def __mul__(self, factor: float) -> Params:
        return self.map(lambda value: value * factor)

    __rmul__ = __mul__

    def dot(self, other: Mapping[str, Tensor]) -> float:
        """Return the inner product of both vectors, in float64."""
        pairs = ((value.flatten(), other[name].flatten()) for name, value in self.items())
        return sum(float(torch.vdot(a.double(), b.double())) for a, b in pairs)

    def prefixed(self, prefix: str) -> Params:
        """Return the same tensors under prefixed names, so that several Params fit into one."""
        return Params({prefix + name: value for name, value in self.items()})

    def under(self, prefix: str) -> Params:
        """Return the tensors with this prefix, without it: the inverse of `prefixed`."""
        return Params(
            {name[len(prefix) :]: value for name, value in self.items() if name.startswith(prefix)}
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(value.numel() * value.element_size() for value in self.values())


def first_misfit(
    values: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> tuple[str, list[int], list[int] | None] | None:
    """Return name, shape and wanted shape of the first tensor of another name or shape than wanted.

    The wanted shape is None if there is no tensor of the name. The result is None if all fit.
    """
    for name, value in values.items():
        shape = [*wanted[name].shape] if name in wanted else None
        if [*value.shape] != shape:
            return name, [*value.shape], shape
    return None


# one number for all tensors, or by name a tensor that broadcasts against the value
Weight = float | Params
# by name: for each of the first dimensions the indices that a value fills
At = Mapping[str, tuple[Any, ...]]
Per = Literal["mean", "tensor", "row", "value"]  # what has a weight of its own


class Term(NamedTuple):
    """One client's contribution: values, their weight, and their positions in larger tensors."""

    value: Params
    weight: Weight
    at: At


@dataclass(frozen=True)
class Mean:
    """A partial weighted mean: the terms of sum(weight * value) / sum(weight) so far.

    `Mean.of(value, weight)` is one client's term. `a + b` joins terms without adding the values, so
    that the single division at the end has an exact sum, whatever the order and the ranks
    (`averaging`). Entries whose weights sum to 0 keep their old value. Weights are >= 0.

    at: positions, for values that are pieces of the mean's tensors. {"w": (rows,)} fills these
    rows, and {"w": (rows, columns)} the entries at their intersections. All other entries get
    weight 0, as do tensors that the value lacks. Indices are tensors or arrays without repetition.
    They are not counted as traffic, because both sides compute them.
    """

    terms: tuple[Term, ...] = ()

    @classmethod
    def of(cls, value: Params, weight: Weight = 1.0, at: At | None = None) -> Mean:
        return cls((Term(value, weight, at or {}),))

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.terms + other.terms)

    @property
    def nbytes(self) -> int:
        """Bytes of the values and of tensor weights.

        Weights that are numbers are part of a message's header and are not counted.
        """
        return sum(
            t.value.nbytes + (t.weight.nbytes if isinstance(t.weight, Params) else 0)
            for t in self.terms
        )
