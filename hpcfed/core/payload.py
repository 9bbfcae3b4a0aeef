"""Values that are exchanged between clients and server: byte counts, devices and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import accumulate
from math import inf, isfinite, prod, sqrt
from operator import mul
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfed.core.params import Mean, Params

LEAVES = (Tensor, np.ndarray)
PLAIN = (str, bytes, int, float, np.generic)  # values beside them, of no bytes
AT_HAND = {"cpu"}  # devices whose values are read without a wait
AT_ONCE = 2**26  # bytes of tensors on a GPU that are examined at once
# largest page-locked buffer, in bytes: the system cannot use such memory for anything else
LOCKED = 2**28


@dataclass
class Tally:
    """Loss, work and traffic of one client in one round.

    Bytes are those of tensors; numbers beside them are not counted. Logs of turns, which
    checkpoints have, store the fields in this order: a new one has a default, and is the last.
    """

    loss: float = 0.0  # sum over examples
    squares: float = 0.0  # sum over examples of the squared mean loss of their batch
    examples: int = 0
    epochs: float = 0.0
    seconds: float = 0.0
    down: int = 0
    up: int = 0
    work: float = (
        0.0  # examples that went forward and backward, own or others; forward alone counts a third
    )
    # noisy gradients of its examples (privacy.by = "examples"): the probability of an example in a
    # batch, and the number of gradients
    releases: tuple[tuple[float, int], ...] = ()

    @property
    def mean_loss(self) -> float:
        """Mean training loss of an example; nan if the client did not train on its own."""
        return self.loss / self.examples if self.examples else float("nan")

    @property
    def root_mean_square(self) -> float:
        """Root of the mean of squared losses, as `squares` has them; nan as `mean_loss`."""
        return sqrt(self.squares / self.examples) if self.examples else float("nan")


def on_device(value: Any, device: torch.device) -> Any:
    """Move all tensors in nested dicts, lists and means to the device.

    The host does not wait for copies to a GPU; it waits for those to its own memory.
    """
    return map_tensors(value, lambda tensor: tensor.to(device, non_blocking=device.type == "cuda"))


def host_buffer(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return new memory on the host for values that come from this device, or go to it.

    For a GPU it is page-locked, up to LOCKED bytes: the GPU then reads and writes it directly, and
    a copy may run while the host continues. torch keeps such memory for later buffers.
    """
    locked = device.type == "cuda" and 0 < prod(shape) * dtype.itemsize <= LOCKED
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=locked)


def map_tensors(value: Any, how: Callable[[Any], Any], leaves: Any = Tensor) -> Any:
    """Apply a function to all tensors in nested dicts, lists and means; keep other values.

    leaves: the types to whose values it is applied; `LEAVES`: to arrays too.
    """
    if isinstance(value, dict):
        return type(value)({name: map_tensors(v, how, leaves) for name, v in value.items()})
    if isinstance(value, Mean):  # the positions of a term stay on the host
        return Mean(
            tuple(
                t._replace(
                    value=map_tensors(t.value, how, leaves),
                    weight=map_tensors(t.weight, how, leaves),
                )
                for t in value.terms
            )
        )
    if type(value) in (list, tuple):
        return type(value)(map_tensors(v, how, leaves) for v in value)
    return how(value) if isinstance(value, leaves) else value


def row_major(value: Any) -> Any:
    """Return the value with all tensors in row-major order in memory; itself, if they are.

    In another memory format, such as that of a convolution's gradient, kernels may add up in
    another order. Checkpoints, messages and files keep no format, so that values which outlive a
    turn must have none of their own: else a resumed run would have other bits.
    """
    if is_row_major(value):
        return value
    return map_tensors(value, partial(torch.clone, memory_format=torch.contiguous_format))


def is_row_major(value: Any) -> bool:
    """Return whether all tensors in nested dicts, lists and means are in row-major order."""
    if isinstance(value, Params):  # the usual case
        return all(map(has_usual_strides, value.values()))
    if isinstance(value, dict):
        return all(map(is_row_major, value.values()))
    if isinstance(value, Mean):
        return all(is_row_major(t.value) and is_row_major(t.weight) for t in value.terms)
    if type(value) in (list, tuple):
        return all(map(is_row_major, value))
    return not isinstance(value, Tensor) or has_usual_strides(value)


def has_usual_strides(tensor: Tensor) -> bool:
    """Return whether a tensor has the strides of a new one.

    A contiguous one may have others in dimensions of size 1, by which torch chooses kernels.
    """
    if not tensor.is_contiguous():
        return False
    if 1 not in tensor.shape:
        return True
    usual = accumulate(reversed(tensor.shape[1:]), mul, initial=1)
    return tensor.stride() == tuple(usual)[::-1]


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


def uncounted(value: Any) -> str:
    """Return the type of the first part of a value whose tensors `tensors` does not see; "": none.

    Such a part is an object of a class, as a method's state that is a dataclass.
    """
    if value is None or isinstance(value, LEAVES + PLAIN):
        return ""
    if isinstance(value, Mapping):
        value = value.values()
    elif isinstance(value, Mean):
        value = [term[:2] for term in value.terms]
    elif not isinstance(value, list | tuple):
        return type(value).__name__
    return next(filter(None, map(uncounted, value)), "")


def bytes_of_bits(n: int) -> int:
    """Return the bytes of n bits in a message."""
    return -(-n // 8)


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
    peaks = magnitudes(torch.as_tensor(tensor) for _, tensor in named)
    return next(
        (name for (name, _), peak in zip(named, peaks, strict=True) if not isfinite(peak)), None
    )


def finite(tensor: Tensor) -> bool:
    """Return whether all values are finite.

    This checks the largest magnitude, which is nan if a value is: one pass, no copy.
    """
    return not_finite(tensor) is None


def magnitudes(values: Iterable[Tensor]) -> list[float]:
    """Return the largest absolute value of each tensor: 0 if it is empty, nan if it has a nan.

    On a GPU, tensors are examined together, by a few kernels, and all results come to the host in
    one copy.
    values: real numbers of any type, read one after the other; at most AT_ONCE bytes of them, or
    one tensor, are used at once.
    """
    peaks: list[float] = []
    batch: dict[int, Tensor] = {}
    results: list[tuple[int, Tensor]] = []
    size = 0
    for i, tensor in enumerate(values):
        peaks.append(0.0)
        if not tensor.numel():
            continue
        if tensor.device.type in AT_HAND:
            low, high = tensor.detach().aminmax()
            peaks[i] = max(high.item(), -low.item())
            continue
        if batch and size + tensor.nbytes > AT_ONCE:
            results += peaks_on_device(batch)
            batch, size = {}, 0
        batch[i] = tensor.detach()
        size += tensor.nbytes
    results += peaks_on_device(batch)
    if results:
        on_host = torch.stack([peak for _, peak in results]).tolist()
        for (i, _), peak in zip(results, on_host, strict=True):
            peaks[i] = peak
    return peaks


def peaks_on_device(batch: Mapping[int, Tensor]) -> list[tuple[int, Tensor]]:
    """Return the largest absolute value of each tensor, a float64 scalar on its device, by key."""
    by_type: dict[torch.dtype, list[int]] = {}
    for i, tensor in batch.items():
        by_type.setdefault(tensor.dtype, []).append(i)
    results: list[tuple[int, Tensor]] = []
    for dtype, keys in by_type.items():
        tensors = [batch[i] for i in keys]
        if not dtype.is_floating_point:  # too few and too small to be worth fewer kernels
            tensors = [tensor.double() for tensor in tensors]
        peaks = torch.stack(torch._foreach_norm(tensors, inf)).double()
        results += zip(keys, peaks.unbind(), strict=True)
    return results
