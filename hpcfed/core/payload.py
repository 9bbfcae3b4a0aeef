"""Values that are exchanged between clients and server: byte counts, devices and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfed.core.params import Mean

LEAVES = (Tensor, np.ndarray)
AT_HAND = {"cpu"}  # devices whose values are read without a wait


@dataclass
class Tally:
    """Loss, work and traffic of one client in one round.

    Bytes are those of tensors; numbers beside them are not counted.
    """

    loss: float = 0.0  # sum over examples
    examples: int = 0
    epochs: float = 0.0
    seconds: float = 0.0
    down: int = 0
    up: int = 0
    work: float = (
        0.0  # examples that went forward and backward, own or others; forward alone counts a third
    )


def on_device(value: Any, device: torch.device) -> Any:
    """Move all tensors in nested dicts, lists and means to the device."""
    return map_tensors(value, lambda tensor: tensor.to(device))


def map_tensors(value: Any, how: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to all tensors in nested dicts, lists and means; keep other values."""
    if isinstance(value, dict):
        return type(value)({name: map_tensors(v, how) for name, v in value.items()})
    if isinstance(value, Mean):  # the positions of a term stay on the host
        return Mean(
            tuple(
                t._replace(value=map_tensors(t.value, how), weight=map_tensors(t.weight, how))
                for t in value.terms
            )
        )
    if type(value) in (list, tuple):
        return type(value)(map_tensors(v, how) for v in value)
    return how(value) if isinstance(value, Tensor) else value


def to_tree(state: Any) -> Any:
    """Return a method's state as nested dicts.

    Params stay as they are; a dataclass becomes a dict of its fields.
    """
    return {f.name: getattr(state, f.name) for f in fields(state)} if is_dataclass(state) else state


def from_tree(like: Any, tree: Any, device: torch.device) -> Any:
    """Return the state from a tree of `to_tree`.

    like: the method's initial state, which gives the type, or that type.
    """
    tree = on_device(tree, device)
    kind: Any = like if isinstance(like, type) else type(like)
    structured = is_dataclass(kind)
    return kind(**tree) if structured else kind(tree)


def nbytes(value: Any) -> int:
    """Return the bytes of all tensors and arrays in nested mappings, sequences and means."""
    return sum(tensor.nbytes for _, tensor in tensors(value))


def tensors(value: Any, name: str = "value") -> Iterator[tuple[str, Tensor | np.ndarray]]:
    """Iterate over the tensors and arrays in a value, each with its name; skip other values."""
    if isinstance(value, LEAVES):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if isinstance(part, LEAVES):  # the usual case, without a generator for each
                yield str(key), part
            else:
                yield from tensors(part, str(key))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part, name)
    elif isinstance(value, Mean):
        yield from tensors([term[:2] for term in value.terms], name)  # values and weights


def not_finite(value: Any) -> str | None:
    """Return the name of the first tensor in a value with nan or infinity, or None.

    A value on a GPU is waited for once, however many tensors it has.
    """
    named = list(tensors(value))
    ends = extremes(torch.as_tensor(tensor) for _, tensor in named)
    for (name, _), (low, high) in zip(named, ends, strict=True):
        if not (isfinite(low) and isfinite(high)):
            return name
    return None


def finite(tensor: Tensor) -> bool:
    """Return whether all values are finite.

    This checks the extremes, which are nan if a value is: one pass, no copy.
    """
    return not_finite(tensor) is None


def extremes(values: Iterable[Tensor]) -> list[tuple[float, float]]:
    """Return the smallest and the largest value of each tensor.

    Both are 0 for an empty tensor, and nan for one that has a nan. From a GPU they come to the host
    together, in one copy.
    values: real numbers of any type, read one after the other.
    """
    ranges: list[tuple[float, float]] = []
    ends: dict[torch.device, dict[torch.dtype, list[Tensor]]] = {}
    places: dict[torch.device, dict[torch.dtype, list[int]]] = {}
    for i, tensor in enumerate(values):
        if not tensor.numel():
            ranges.append((0.0, 0.0))
            continue
        low, high = tensor.detach().aminmax()
        if low.device.type in AT_HAND:
            ranges.append((low.item(), high.item()))
        else:
            ranges.append((0.0, 0.0))  # for the time being
            ends.setdefault(low.device, {}).setdefault(low.dtype, []).extend((low, high))
            places.setdefault(low.device, {}).setdefault(low.dtype, []).append(i)
    for device, by_type in ends.items():
        pairs = torch.cat([torch.stack(some).double() for some in by_type.values()])
        order = [i for some in places[device].values() for i in some]
        for i, (low, high) in zip(order, pairs.view(-1, 2).tolist(), strict=True):
            ranges[i] = low, high
    return ranges
