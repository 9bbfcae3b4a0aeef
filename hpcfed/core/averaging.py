"""Exact weighted averaging: the terms of all ranks are summed exactly and divided once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfed.core.aligned import cut, padded
from hpcfed.core.params import Params, Per, Term
from hpcfed.core.payload import host_buffer


def mean_of(
    terms: Iterable[Term],
    keep: Params,
    per: Per,
    sum_: Callable[..., Any],
    place: Callable[[list[Row]], Any] = list,
    receiver: Callable[[Params, Per], Quotients] | None = None,
) -> Params:
    """Return the weighted mean of the terms of all ranks; collective.

    keep: gives the names and shapes, and the values where the weights sum to 0.
    sum_: `Comm.sum`.
    place: makes of a list of rows what `sum_` gets; by default they are read on the host.
    receiver: makes what receives the sums, and turns them into other values than means.
    """
    rows = [Row(term, keep, per) for term in terms]
    quotients = (receiver or Quotients)(keep, per)
    shapes, factors = [array.shape for array in quotients.arrays], [row.factor for row in rows]
    sum_(place(rows), shapes, factors, quotients)
    return quotients.mean()


def weight_shape(shape: tuple[int, ...], per: Per) -> tuple[int, ...]:
    """Return the shape of a tensor's weights: one number, one per row, or one per value."""
    return {"tensor": (), "row": (*shape[:1], *(1,) * (len(shape) - 1)), "value": shape}[per]


class Quotients:
    """Receiver of exact sums, which turns them into means.

    `arrays` holds the weights, then the means: each total is divided by its weight.
    """

    def __init__(self, keep: Params, per: Per):
        self.keep = keep
        shapes = [tuple(value.shape) for value in keep.values()]
        self.weights = [
            np.empty(s) for s in ([()] if per == "mean" else [weight_shape(s, per) for s in shapes])
        ]
        float32 = all(value.dtype == torch.float32 for value in keep.values())
        devices = {value.device for value in keep.values()}
        self.device = devices.pop() if len(devices) == 1 else torch.device("cpu")
        # one buffer, because new memory comes faster in large pages, and reaches a GPU in one copy
        self.flat = host_buffer(
            [sum(map(padded, shapes))], torch.float32 if float32 else torch.float64, self.device
        )
        self.means = [view.numpy() for view in self.views(self.flat)]
        self.arrays, self.n_first = self.weights + self.means, len(self.weights)

    def finish(self, i: int, start: int, total: np.ndarray) -> None:
        """Divide a section of totals by its weights; where the weight is 0, keep the old value."""
        if i < self.n_first:
            return
        weight = self.weight(i, start, len(total))
        positive = weight > 0
        if positive.all():  # the usual case: a division without a mask takes a third of the time
            np.divide(total, weight, out=total)
            return
        np.divide(total, weight, out=total, where=positive)
        np.copyto(total, self.old(i, start, len(total)), where=~positive)

    def weight(self, i: int, start: int, n: int) -> np.ndarray:
        """Return the weights of n totals of array i from flat position `start`: one, or [n]."""
        j = i - self.n_first
        weight = self.weights[j % self.n_first]
        full = np.broadcast_to(weight, self.means[j].shape)
        return weight.reshape(()) if weight.size == 1 else full.flat[start : start + n]

    def old(self, i: int, start: int, n: int) -> np.ndarray:
        """Return the n values that the means of array i replace, from flat position `start`."""
        value = list(self.keep.values())[i - self.n_first].detach().reshape(-1)
        return _numpy(value[start : start + n])

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the parts of a flat vector in the shapes of the means."""
        return cut(flat, [value.shape for value in self.keep.values()])

    def mean(self) -> Params:
        """Return the means by name, with the type and device of the values that they replace."""
        means = self.views(self.flat.to(self.device, non_blocking=True))
        return Params(
            {
                name: mean.to(old.device, old.dtype)
                for (name, old), mean in zip(self.keep.items(), means, strict=True)
            }
        )


class Row(Sequence[np.ndarray]):
    """One term as a sequence of arrays: the weights, then the values.

    The arrays are made when they are requested. All of them are to be multiplied by `factor`. If
    the term's weight is a number, it is the factor, and the values are the term's own memory.
    Otherwise the values are weight * value in float64. `tensor` gives the same arrays on a device.
    """

    def __init__(self, term: Term, keep: Params, per: Per):
        self.value, self.weight, self.at = term
        self.factor = 1.0 if isinstance(self.weight, Params) else float(self.weight)
        self.names, self.per, self.keep = list(keep), per, keep
        self.n_first = 1 if per == "mean" else len(self.names)  # number of arrays that are weights
        if unknown := [name for name in self.value if name not in keep]:
            raise KeyError(f"mean: no tensor {unknown[0]!r} among {self.names}")
        if per == "mean" and (
            self.at or len(self.value) < len(keep) or isinstance(self.weight, Params)
        ):
            raise ValueError(
                "mean: a term of pieces, or with several weights, needs per = tensor, row or value"
            )

    def __len__(self) -> int:
        return self.n_first + len(self.names)

    def __getitem__(self, i: int) -> np.ndarray:  # type: ignore[override]  # no slices
        name, is_weight = self.entry(i)
        if not is_weight:
            return self.total(name)
        return np.ones(()) if self.per == "mean" else self.weights(name)

    def tensor(self, i: int, device: torch.device) -> Tensor:
        """Return array i as a tensor on this device, which has the values of `self[i]`."""
        name, is_weight = self.entry(i)
        if is_weight and self.per == "mean":
            return torch.ones((), dtype=torch.float64, device=device)
        shape = self.shape(name, is_weight)
        if name not in self.value:
            return torch.zeros(shape, dtype=torch.float64, device=device)
        if not is_weight:
            piece = self.product(name).to(device)
        else:
            factor = (
                self.weight[name].detach().to(device, torch.float64)
                if isinstance(self.weight, Params)
                else torch.ones((), dtype=torch.float64, device=device)
            )
            piece = factor.broadcast_to(weight_shape(tuple(self.value[name].shape), self.per))
        return zero_pad_tensor(piece, shape, self.axes(name, is_weight))

    def entry(self, i: int) -> tuple[str, bool]:
        """Return the name of array i, and whether the array is a weight."""
        is_weight = i < self.n_first
        return self.names[i if is_weight else i - self.n_first], is_weight

    def shape(self, name: str, is_weight: bool) -> tuple[int, ...]:
        """Return the shape of the mean, or of its weights."""
        shape = tuple(self.keep[name].shape)
        return weight_shape(shape, self.per) if is_weight else shape

    def axes(self, name: str, is_weight: bool) -> Sequence[Any]:
        """Return the positions that the value fills, or its weights."""
        axes = self.at.get(name, ())
        return axes[: {"tensor": 0, "row": 1}.get(self.per)] if is_weight else axes

    def total(self, name: str) -> np.ndarray:
        """Return the value, times a tensor weight, in zeros of the mean's shape."""
        if name not in self.value:
            return np.zeros(self.shape(name, False))
        piece = _numpy(self.product(name))
        axes = self.axes(name, False)
        return zero_pad(piece, self.shape(name, False), axes) if len(axes) else piece

    def weights(self, name: str) -> np.ndarray:
        """Return the weights of the entries that the value fills, in zeros.

        The shape is [], [n, 1, ...] or that of the value. The weights are 1 if the factor is the
        part's weight.
        """
        shape = self.shape(name, True)
        if name not in self.value:
            return np.zeros(shape)
        factor = (
            _numpy(self.weight[name].double()) if isinstance(self.weight, Params) else np.ones(())
        )
        piece = np.broadcast_to(factor, weight_shape(tuple(self.value[name].shape), self.per))
        return zero_pad(piece, shape, self.axes(name, True))

    def product(self, name: str) -> Tensor:
        """Return the value, times a tensor weight, in the value's own shape."""
        value = self.value[name].detach()
        if isinstance(self.weight, Params):
            value = value.double() * self.weight[name].detach().double()
        return value


def zero_pad(piece: np.ndarray, shape: tuple[int, ...], axes: Sequence[Any]) -> np.ndarray:
    """Return zeros of this shape with the piece at the given indices of the first dimensions.

    Without indices, returns the piece itself.
    """
    if not len(axes):
        return piece
    padded = np.zeros(shape, piece.dtype)
    padded[np.ix_(*map(np.asarray, axes))] = piece
    return padded


def zero_pad_tensor(piece: Tensor, shape: tuple[int, ...], axes: Sequence[Any]) -> Tensor:
    """Return what `zero_pad` returns, on the device of the piece.

    Raises IndexError for indices beyond the shape. A GPU would only find them later, and stop.
    """
    if not len(axes):
        return piece
    indices = np.ix_(*map(np.asarray, axes))
    for index, size in zip(indices, shape, strict=False):
        if index.size and not (-size <= index.min() and index.max() < size):
            raise IndexError(
                f"mean: positions {index.min()}..{index.max()} of a dimension of {size} entries"
            )
    padded = torch.zeros(shape, dtype=piece.dtype, device=piece.device)
    padded[
        tuple(torch.tensor(index.astype(np.int64), device=piece.device) for index in indices)
    ] = piece
    return padded


def _numpy(value: Tensor) -> np.ndarray:
    """Return the tensor as a NumPy array, without a copy if its device and type allow it."""
    return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
