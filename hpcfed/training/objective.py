"""A local objective split into the part that all clients share, and its tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from hpcfed.clients.client import Client
from hpcfed.config.sections import Section
from hpcfed.core.params import Params
from hpcfed.training.recorded_step import signature
from hpcfed.training.side_effects import Untraceable, of_objective, plain

if TYPE_CHECKING:
    from hpcfed.training.local import Loss


class Anyone:
    """A stand-in for the client while an objective is recorded.

    The recording is for all clients, so any use of a client's attributes raises Untraceable.
    """

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(f"it asks for the client's {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise Untraceable(f"it sets the client's {name}")

    def compare(self, *other: Any) -> Any:
        raise Untraceable("it looks at the client")

    __delattr__ = __eq__ = __hash__ = __repr__ = compare


class ReadOnly(Params):
    """Params for an objective while it is recorded; writing raises Untraceable.

    A replay would not repeat what the objective wrote.
    """

    def write(self, *args: Any, **kwargs: Any) -> Any:
        raise Untraceable("it writes into the Params that it is given")

    __setitem__ = __delitem__ = __ior__ = write
    update = setdefault = pop = popitem = clear = write


def extract_tensors(
    loss: Loss,
) -> tuple[Hashable, list[Tensor], Callable[[Sequence[Tensor]], Loss]]:
    """Return the part of a loss that all clients share, its tensors, and their replacement.

    loss: a function, a method's own hook, or a partial of one. The last result is a function: other
    tensors -> the loss with these tensors.

    Raises Untraceable if the arguments hold anything but tensors, plain values, clients, and
    Params, tuples and frozen dataclasses of them: such an object could change, and writes into it
    would be lost. Raises Untraceable too if the code may write into anything else that lasts
    (`training.side_effects`).
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
    """Return a key that is equal for equal functions."""
    if isinstance(fn, MethodType) and isinstance(fn.__self__, Section):
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
    """Return the part of a value on which a recording depends.

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
    """Return the same value with its tensors replaced by the next ones.

    A client is replaced by `Anyone`, and Params by `ReadOnly`.
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
    """Return the tensors of a batch's inputs or targets as a list.

    batch: one tensor, or several in a list, a tuple or a dict by modality.
    """
    if isinstance(batch, Tensor):
        return [batch]
    return list(batch.values() if isinstance(batch, Mapping) else batch)


def form(batch: Any) -> tuple[str, ...]:
    """Return the names of the modalities in a batch's inputs; () for a single one."""
    return tuple(batch) if isinstance(batch, Mapping) else ()


def like(batch: Any, tensors: Sequence[Tensor]) -> Any:
    """Return these tensors in the form of that batch, the inverse of `flat`."""
    if isinstance(batch, Mapping):
        return dict(zip(batch, tensors, strict=True))
    return tensors[0] if isinstance(batch, Tensor) else type(batch)(tensors)


def title(loss: Callable[..., Any]) -> str:
    """Return a loss's name, for messages."""
    fn = loss.func if isinstance(loss, partial) else loss
    return f"the local objective {getattr(fn, '__qualname__', type(fn).__name__)}"
