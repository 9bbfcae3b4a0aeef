"""Named tensors with + - *, and the one thing that is averaged: a weighted mean of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(value.numel() * value.element_size() for value in self.values())


Weight = float | Params  # one number for all tensors, or by name a tensor that broadcasts against the value


@dataclass(frozen=True)
class Mean:
    """A partial weighted mean: what is known of sum(weight * value) / sum(weight) so far.

    `Mean.of(value, weight)` is one client's part; `a + b` joins parts without adding them, so that the
    one division at the end sees an exact sum, whatever the order and the ranks (`Federation.mean`).
    Entries whose weights sum to 0 keep their old value. Weights are >= 0.
    """

    parts: tuple[tuple[Params, Weight], ...] = ()

    @classmethod
    def of(cls, value: Params, weight: Weight = 1.0) -> Mean:
        return cls(((value, weight),))

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.parts + other.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the values; weights that are numbers travel as part of the header and are not counted."""
        return sum(v.nbytes + (w.nbytes if isinstance(w, Params) else 0) for v, w in self.parts)

    def rows(self) -> Iterator[Row]:
        return (Row(value, weight) for value, weight in self.parts)

    @staticmethod
    def shapes(keep: Params, weights: Params | None) -> list[tuple[int, ...]]:
        """Shapes of a row's arrays: totals as `keep`, then the weights (one number, or as `weights`)."""
        return [tuple(v.shape) for v in keep.values()] + (
            [tuple(weights[name].shape) for name in keep] if weights is not None else [()]
        )

    @staticmethod
    def divide(sums: Sequence[np.ndarray], keep: Params) -> Params:
        """The mean from exact float64 totals and weights; where the weight is 0, the value of `keep`."""
        names = list(keep)
        totals, weights = sums[: len(names)], list(sums[len(names) :])
        weights = weights if len(weights) == len(names) else weights * len(names)
        return Params({n: _divide(t, w, keep[n]) for n, t, w in zip(names, totals, weights, strict=True)})


def _divide(total: np.ndarray, weight: np.ndarray, keep: Tensor) -> Tensor:
    seen = np.array(np.broadcast_to(weight > 0, total.shape))  # a copy: torch takes no read-only arrays
    value = torch.from_numpy(np.divide(total, weight, out=np.zeros_like(total), where=seen)).to(keep.dtype)
    return torch.where(torch.from_numpy(seen).to(keep.device), value.to(keep.device), keep)


class Row(Sequence[np.ndarray]):
    """One part as float64 arrays, made when asked for: weight * value by tensor, then the weights."""

    def __init__(self, value: Params, weight: Weight):
        self.value, self.weight, self.names = value, weight, list(value)

    def __len__(self) -> int:
        return len(self.names) * 2 if isinstance(self.weight, Params) else len(self.names) + 1

    def __getitem__(self, i: int) -> np.ndarray:
        if i >= len(self.names):
            weights = self._weights()
            return _float64(weights[i - len(self.names)])
        name = self.names[i]
        factor = self.weight[name].double() if isinstance(self.weight, Params) else float(self.weight)
        return _float64(self.value[name].detach().double() * factor)

    def _weights(self) -> list[Tensor]:
        if isinstance(self.weight, Params):
            return [self.weight[name] for name in self.names]
        return [torch.tensor(float(self.weight), dtype=torch.float64)]


def _float64(value: Tensor) -> np.ndarray:
    return value.detach().double().cpu().numpy()
