"""Named tensors with + - *, and the one thing that is averaged: a weighted mean of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Params(dict[str, Tensor]):
    """Tensors by name, added and scaled as one vector, so that a formula reads as in the paper.

    `(1 - alpha) * old + alpha * new`. Both sides of + and - have the same names. Missing names: KeyError.
    """

    def map(self, fn: Callable[[Tensor], Tensor]) -> Params:
        return Params({name: fn(value) for name, value in self.items()})

    def pick(self, wanted: Callable[[str], bool]) -> Params:
        """Only the tensors whose name is wanted."""
        return Params({name: value for name, value in self.items() if wanted(name)})

    def clone(self) -> Params:
        """A copy that shares no memory with this one."""
        return self.map(lambda value: value.detach().clone())

    def __add__(self, other: Mapping[str, Tensor]) -> Params:
        return Params({name: value + other[name] for name, value in self.items()})

    def __sub__(self, other: Mapping[str, Tensor]) -> Params:
        return Params({name: value - other[name] for name, value in self.items()})

    def __mul__(self, factor: float) -> Params:
        return self.map(lambda value: value * factor)

    __rmul__ = __mul__

    def prefixed(self, prefix: str) -> Params:
        """The same tensors under longer names, so that several Params fit into one."""
        return Params({prefix + name: value for name, value in self.items()})

    def under(self, prefix: str) -> Params:
        """The tensors whose names begin so, without that beginning: the inverse of `prefixed`."""
        return Params({name[len(prefix) :]: value for name, value in self.items() if name.startswith(prefix)})

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(value.numel() * value.element_size() for value in self.values())


Weight = float | Params  # one number for all tensors, or by name a tensor that broadcasts against the value
At = Mapping[str, tuple[Any, ...]]  # by name: for each of the first dimensions the indices that a value fills
Per = Literal["mean", "tensor", "row", "value"]  # what has a weight of its own


class Part(NamedTuple):
    """One client's contribution: values, their weight, and where they belong in larger tensors."""

    value: Params
    weight: Weight
    at: At


@dataclass(frozen=True)
class Mean:
    """A partial weighted mean: what is known of sum(weight * value) / sum(weight) so far.

    `Mean.of(value, weight)` is one client's part; `a + b` joins parts without adding them, so that the
    one division at the end sees an exact sum, whatever the order and the ranks (`Federation.mean`).
    Entries whose weights sum to 0 keep their old value. Weights are >= 0.

    at: where a value is a piece of the mean's tensor. {"w": (rows,)} fills these rows, {"w": (rows, columns)}
    the places where they cross; all else gets weight 0, as do tensors that the value lacks. Index tensors
    or arrays without repetition; they are not counted as traffic, for both sides compute them.
    """

    parts: tuple[Part, ...] = ()

    @classmethod
    def of(cls, value: Params, weight: Weight = 1.0, at: At | None = None) -> Mean:
        return cls((Part(value, weight, at or {}),))

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.parts + other.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the values; weights that are numbers travel as part of the header and are not counted."""
        return sum(p.value.nbytes + (p.weight.nbytes if isinstance(p.weight, Params) else 0) for p in self.parts)

    def rows(self, keep: Params, per: Per = "mean") -> Iterator[Row]:
        """The parts as what `Comm.sum` adds up, for a mean of the shapes of `keep`."""
        return (Row(part, keep, per) for part in self.parts)

    @staticmethod
    def shapes(keep: Params, per: Per = "mean") -> list[tuple[int, ...]]:
        """Shapes of a row's arrays: totals as `keep`, then the weights (one number, or one array a tensor)."""
        totals = [tuple(v.shape) for v in keep.values()]
        return totals + ([()] if per == "mean" else [weight_shape(shape, per) for shape in totals])

    @staticmethod
    def divide(sums: Sequence[np.ndarray], keep: Params) -> Params:
        """The mean from exact float64 totals and weights; where the weight is 0, the value of `keep`."""
        names = list(keep)
        totals, weights = sums[: len(names)], list(sums[len(names) :])
        weights = weights if len(weights) == len(names) else weights * len(names)
        return Params({n: _divide(t, w, keep[n]) for n, t, w in zip(names, totals, weights, strict=True)})


def weight_shape(shape: tuple[int, ...], per: Per) -> tuple[int, ...]:
    """The shape of a tensor's weights: one, one a row, or one a value."""
    return {"tensor": (), "row": (*shape[:1], *(1,) * (len(shape) - 1)), "value": shape}[per]


def _divide(total: np.ndarray, weight: np.ndarray, keep: Tensor) -> Tensor:
    seen = np.array(np.broadcast_to(weight > 0, total.shape))  # a copy: torch takes no read-only arrays
    value = torch.from_numpy(np.divide(total, weight, out=np.zeros_like(total), where=seen)).to(keep.dtype)
    return torch.where(torch.from_numpy(seen).to(keep.device), value.to(keep.device), keep)


class Row(Sequence[np.ndarray]):
    """One part as float64 arrays, made when asked for: weight * value by tensor, then the weights."""

    def __init__(self, part: Part, keep: Params, per: Per):
        self.value, self.weight, self.at = part
        self.names, self.per = list(keep), per
        self.shape = {name: tuple(v.shape) for name, v in keep.items()}
        if unknown := [name for name in self.value if name not in keep]:
            raise KeyError(f"mean: no tensor {unknown[0]!r} among {self.names}")
        if per == "mean" and (self.at or len(self.value) < len(keep)):
            raise ValueError("mean: a part that fills only pieces of the tensors needs per = tensor, row or value")

    def __len__(self) -> int:
        return len(self.names) + (1 if self.per == "mean" else len(self.names))

    def __getitem__(self, i: int) -> np.ndarray:
        if i < len(self.names):
            return self.total(self.names[i])
        return np.asarray(float(self.weight)) if self.per == "mean" else self.weights(self.names[i - len(self.names)])

    def total(self, name: str) -> np.ndarray:
        """weight * value, in zeros of the mean's shape."""
        if name not in self.value:
            return np.zeros(self.shape[name])
        factor = self.weight[name].double() if isinstance(self.weight, Params) else float(self.weight)
        return spread(_float64(self.value[name].detach().double() * factor), self.shape[name], self.at.get(name, ()))

    def weights(self, name: str) -> np.ndarray:
        """The weights of what the value fills, in zeros: [] or [n, 1, ...] or the mean's shape."""
        shape = weight_shape(self.shape[name], self.per)
        if name not in self.value:
            return np.zeros(shape)
        given = _float64(self.weight[name]) if isinstance(self.weight, Params) else np.asarray(float(self.weight))
        piece = np.broadcast_to(given, weight_shape(tuple(self.value[name].shape), self.per))
        return spread(piece, shape, self.at.get(name, ())[: {"tensor": 0, "row": 1}.get(self.per)])


def spread(piece: np.ndarray, shape: tuple[int, ...], axes: Sequence[Any]) -> np.ndarray:
    """The piece at the given indices of the first dimensions, in zeros of this shape; without indices the piece."""
    if not len(axes):
        return piece
    whole = np.zeros(shape)
    whole[np.ix_(*map(np.asarray, axes))] = piece
    return whole


def _float64(value: Tensor) -> np.ndarray:
    return value.detach().double().cpu().numpy()
