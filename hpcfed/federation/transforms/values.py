"""The tensors of an upload that transforms change, by path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcfed.core.params import Mean
from hpcfed.core.payload import not_finite

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation

T = TypeVar("T")
STATISTICS = ("running_mean", "running_var")  # endings of names


class Value(NamedTuple):
    """A tensor of an upload that a transform changes.

    path: its name in the part.
    reference: the tensor of which it is a new version; None: there is none.
    at: its positions in a larger tensor, as in `Mean.of`; None: it is complete.
    """

    path: str
    tensor: Tensor
    reference: Tensor | None = None
    at: tuple[Any, ...] | None = None


def values_of(part: Any, reference: Any = None, path: str = "") -> Iterator[Value]:
    """Yield the float32 tensors of a part, without the weights of means, and without statistics."""
    references = reference if isinstance(reference, Mapping) else {}
    if isinstance(part, Mean):
        for i, term in enumerate(part.terms):
            for name, value in term.value.items():
                if is_encoded(name, value):
                    at = term.at.get(name)
                    yield Value(f"{path}/{i}/{name}", value, version(references, name, value), at)
    elif isinstance(part, dict):
        for name, value in part.items():
            if isinstance(value, Tensor):
                if is_encoded(name, value):
                    yield Value(f"{path}/{name}", value, version(references, name, value))
            else:
                yield from values_of(value, references.get(name), f"{path}/{name}")
    elif type(part) in (list, tuple):
        for i, value in enumerate(part):
            yield from values_of(value, None, f"{path}/{i}")
    elif isinstance(part, Tensor) and part.dtype == torch.float32:
        yield Value(path, part, reference if isinstance(reference, Tensor) else None)


def is_encoded(name: Any, value: Tensor) -> bool:
    """Return whether transforms change a tensor of this name.

    Batch normalisation's statistics stay: a variance must not become negative.
    """
    return value.dtype == torch.float32 and not str(name).endswith(STATISTICS)


def version(references: Mapping[str, Any], name: Any, value: Tensor) -> Tensor | None:
    """Return the tensor of which a value is a new version, if there is one.

    There is none if the client has received values that are not finite, as of a class that nobody
    has had so far.
    """
    reference = references.get(name)
    if not isinstance(reference, Tensor) or reference.shape != value.shape:
        return None
    return None if not_finite(reference) else reference


def with_values(part: T, new: Mapping[str, Tensor], path: str = "") -> T:
    """Return the part with other tensors, by path."""
    how: Callable[[Any, str], Any] = lambda value, path: with_values(value, new, path)  # noqa: E731
    result: Any = part
    if isinstance(part, Mean):
        result = Mean(
            tuple(
                term._replace(value=how(term.value, f"{path}/{i}"))
                for i, term in enumerate(part.terms)
            )
        )
    elif isinstance(part, dict):
        result = type(part)({name: how(v, f"{path}/{name}") for name, v in part.items()})
    elif type(part) in (list, tuple):
        result = type(part)(how(v, f"{path}/{i}") for i, v in enumerate(part))  # type: ignore
    elif isinstance(part, Tensor):
        result = new.get(path, part)
    return result


def array(value: Tensor) -> np.ndarray:
    """Return a copy of a tensor on the host."""
    return np.array(value.detach().cpu().numpy())


def tensor(x: np.ndarray, like: Tensor) -> Tensor:
    """Return an array as a tensor of this shape, on the device of another one."""
    return torch.from_numpy(np.array(x, np.float32).reshape(like.shape)).to(like.device)


def update_of(value: Value) -> np.ndarray:
    """Return the difference to the reference; without one, the value."""
    x = array(value.tensor)
    return x if value.reference is None else x - array(value.reference)


def added(value: Value, update: np.ndarray) -> Tensor:
    """Return the reference, if there is one, plus an update."""
    if value.reference is None:
        return tensor(update, value.tensor)
    return tensor(array(value.reference) + update, value.tensor)


def cells(at: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    """Return the index of positions in a larger array."""
    return np.ix_(*(np.asarray(torch.as_tensor(axis).cpu()) for axis in at))


def turn_of(fed: Federation, client: Client) -> int:
    """Return the number of the client's turn in the round, from 1."""
    return fed.replay.requests.get(client.id, 0)
