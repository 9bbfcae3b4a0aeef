"""A local objective taken apart: what of it is the same for all clients, and the tensors that are
not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from hpcfed.clients.client import Client
from hpcfed.config.parts import Part
from hpcfed.core.params import Params
from hpcfed.training.recorded_step import signature
from hpcfed.training.side_effects import Untraceable, of_objective, plain

if TYPE_CHECKING:
    from hpcfed.training.local import Loss


class Anyone:
    """Stands for the client while an objective is recorded, for that is done for all: nothing can
    be asked of it, and nothing told.
    """

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(f"it asks for the client's {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise Untraceable(f"it sets the client's {name}")

    def compare(self, *other: Any) -> Any:
        raise Untraceable("it looks at the client")

    __delattr__ = __eq__ = __hash__ = __repr__ = compare


class ReadOnly(Params):
    """Params that an objective gets while it is recorded: what it wrote into them would be lost."""

    def write(self, *args: Any, **kwargs: Any) -> Any:
        raise Untraceable("it writes into the Params that it is given")

    __setitem__ = __delitem__ = __ior__ = write
    update = setdefault = pop = popitem = clear = write


def extract_tensors(
    loss: Loss,
) -> tuple[Hashable, list[Tensor], Callable[[Sequence[Tensor]], Loss]]:
    """A loss as what is the same for all clients, the tensors in its arguments, and how others are
    put in.

    loss: a function, a method's own hook, or a partial of one. Raises Untraceable where it holds
    something else than tensors, plain values, clients, and Params, tuples and frozen dataclasses of
    them: that could be another one next time, and what it wrote into it would be lost. So too where
    its code may write into something else that lasts (`training.effects`).
    """
    fn, args = (
        (loss.func, (loss.args, Params(loss.keywords)))
        if isinstance(loss, partial)
        else (loss, ((), Params()))
    )
    tensors: list[Tensor] = []
    form = outline(args, tensors)

    def refill(others: Sequence[Tensor]) -> Loss:
        positional, named = fill_tensors(args, iter(others))
        return partial(fn, *positional, **named)

    return (identity(fn), form), tensors, refill


def identity(fn: Any) -> Hashable:
    """What makes two functions the same."""
    if isinstance(fn, MethodType) and isinstance(fn.__self__, Part):
        # the algorithm, a frozen record that lives as long as the run
        return (
            fn.__func__,
            id(fn.__self__),
            of_objective(cast(FunctionType, fn.__func__), fn.__self__),
        )
    if isinstance(fn, FunctionType) and not (
        fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__
    ):
        return fn.__code__, of_objective(fn)
    raise Untraceable("it is no hook of a method and no function without variables from around it")


def outline(value: Any, tensors: list[Tensor]) -> Hashable:
    """What of a value a recording depends on.

    Its tensors are added to the list, in the order of `fill_tensors`.
    """
    kind = type(value)
    if isinstance(value, Tensor):
        tensors.append(value)
        return signature(value)
    if isinstance(value, Client):
        return Client
    if plain(value):
        return kind, repr(value)
    if isinstance(value, Params):
        return kind, tuple((name, outline(v, tensors)) for name, v in value.items())
    if isinstance(value, tuple):
        return kind, tuple(outline(v, tensors) for v in value)
    if is_dataclass(value) and value.__dataclass_params__.frozen:  # type: ignore[union-attr]
        return kind, tuple(outline(getattr(value, f.name), tensors) for f in fields(value))
    raise Untraceable(f"it holds a {kind.__name__}, which can change")


def fill_tensors(value: Any, left: Iterator[Tensor]) -> Any:
    """The same value with the next tensors in the place of its own, and nobody in the place of a
    client.
    """
    if isinstance(value, Tensor):
        return next(left)
    if isinstance(value, Client):
        return Anyone()
    if plain(value):
        return value
    if isinstance(value, Params):
        return ReadOnly({name: fill_tensors(v, left) for name, v in value.items()})
    if isinstance(value, tuple):
        parts = [fill_tensors(v, left) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return replace(
        value, **{f.name: fill_tensors(getattr(value, f.name), left) for f in fields(value)}
    )


def flat(batch: Any) -> list[Tensor]:
    """The tensors of a batch's inputs or targets: one, or several in a list, a tuple or a dict by
    modality.
    """
    if isinstance(batch, Tensor):
        return [batch]
    return list(batch.values() if isinstance(batch, Mapping) else batch)


def form(batch: Any) -> tuple[str, ...]:
    """What of a batch's inputs its tensors do not tell: the names of the modalities that it has."""
    return tuple(batch) if isinstance(batch, Mapping) else ()


def like(batch: Any, tensors: Sequence[Tensor]) -> Any:
    """The inverse of `flat`: these tensors in the form of that batch."""
    if isinstance(batch, Mapping):
        return dict(zip(batch, tensors, strict=True))
    return tensors[0] if isinstance(batch, Tensor) else type(batch)(tensors)


def title(loss: Callable[..., Any]) -> str:
    """A loss's name, for messages."""
    fn = loss.func if isinstance(loss, partial) else loss
    return f"the local objective {getattr(fn, '__qualname__', type(fn).__name__)}"
