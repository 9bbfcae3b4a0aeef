"""Shapes of examples with one or several modalities, without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

A = TypeVar("A")
# one per channel, by modality if there are several
Numbers = Sequence[float] | Mapping[str, Sequence[float]]


class Modality(NamedTuple):
    """One modality of an example: name, shape, and number of different tokens.

    vocabulary: 0 if the modality is not a sequence of tokens.
    """

    name: str
    shape: tuple[int, ...]
    vocabulary: int = 0


class Shapes(tuple[Modality, ...]):
    """Shape of one example with several modalities, in their order."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(modality.name for modality in self)

    def only(self, names: Collection[str]) -> Shapes:
        """Return the modalities of these names, in the order that they have here."""
        return Shapes(modality for modality in self if modality.name in names)

    def __str__(self) -> str:
        return ", ".join(f"{name} {list(shape)}" for name, shape, _ in self)


def read_shape(stored: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of one example from its JSON form.

    stored: whole numbers, or name, shape and vocabulary of each modality.
    """
    if stored and isinstance(stored[0], Mapping):
        rows = (Modality(**part | {"shape": tuple(part["shape"])}) for part in stored)
        return cast(Any, Shapes(rows))
    return tuple(stored)


def write_shape(shape: tuple[int, ...]) -> list[Any]:
    """Return the JSON form of a shape, for `read_shape`."""
    if isinstance(shape, Shapes):
        return [part._asdict() | {"shape": list(part.shape)} for part in shape]
    return list(shape)


def read_numbers(stored: Any) -> Any:
    """Return numbers of channels from JSON as tuples, by modality if there are several."""
    if isinstance(stored, Mapping):
        return {name: tuple(values) for name, values in stored.items()}
    return tuple(stored)


def write_numbers(numbers: Numbers) -> Any:
    """Return the JSON form of numbers, for `read_numbers`."""
    if isinstance(numbers, Mapping):
        return {name: list(values) for name, values in numbers.items()}
    return list(numbers)


def describe_shape(shape: tuple[int, ...]) -> str:
    """Return the shape of one example as text, for messages."""
    return str(shape) if isinstance(shape, Shapes) else str(list(shape))


def each(x: A | Mapping[str, A], change: Callable[[A], Any]) -> Any:
    """Apply a function to the inputs, or to each modality if there are several."""
    return {name: change(v) for name, v in x.items()} if isinstance(x, Mapping) else change(x)


def parts(x: A | Mapping[str, A]) -> list[A]:
    """Return the arrays or tensors of inputs as a list: one, or one per modality."""
    return list(x.values()) if isinstance(x, Mapping) else [x]


def values(shape: tuple[int, ...]) -> int:
    """Return the number of values of one example of this shape."""
    if isinstance(shape, Shapes):
        return sum(math.prod(modality.shape) for modality in shape)
    return math.prod(shape)
