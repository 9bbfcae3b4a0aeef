"""A local objective split into the part that all clients share, and its tensors.

A CUDA graph, or a step of several clients at once, serves many clients. What differs between them,
such as the model that each received, has to be replaced from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed.clients.client import Client
from hpcfed.config.sections import Section
from hpcfed.core.params import Params
from hpcfed.models.hooks import PureHook
from hpcfed.tasks import Task

if TYPE_CHECKING:
    from hpcfed.training.local import Loss

PLAIN = (str, bytes, int, float, complex, bool, type(None), range, slice, type(...))
CONSTANT = (np.generic, Enum, PurePath, torch.dtype, torch.device, torch.Size)
# modules of the hooks that are called around training; of them `loss` alone is called in it
HOOKS = ("hpcfed.algorithms.base", "hpcfed.algorithms.events")
MODULE = frozenset(vars(nn.Module())) - {"training"}  # attributes that every module has


class Unshareable(Exception):
    """The reason why an objective cannot serve several clients."""


class Anyone:
    """A stand-in for the client in a step that serves several clients.

    task: what all clients' labels are. Any use of another attribute raises Unshareable.
    """

    def __init__(self, task: Task):
        object.__setattr__(self, "task", task)

    def __getattr__(self, name: str) -> Any:
        raise Unshareable(f"it asks for the client's {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise Unshareable(f"it sets the client's {name}")

    def compare(self, *other: Any) -> Any:
        raise Unshareable("it looks at the client")

    __delattr__ = __eq__ = __hash__ = __repr__ = compare


def is_users(loss: Callable[..., Any], architecture: str) -> bool:
    """Return whether an objective or its model is a user's own code, or may call some."""
    fn = loss.func if isinstance(loss, partial) else loss
    if ":" in architecture or not is_ours(fn):
        return True
    return isinstance(fn, MethodType) and adds_to_steps(type(fn.__self__))


def is_ours(code: Any) -> bool:
    """Return whether a function or class is one of hpcfed's."""
    return (getattr(code, "__module__", None) or "").startswith("hpcfed.")


def adds_to_steps(method: type) -> bool:
    """Return whether a user's class derives from a method and has functions that its objective may
    call: all but the hooks around training.
    """
    bases = [c for c in method.__mro__ if is_ours(c)]
    around = {name for c in bases if c.__module__ in HOOKS for name in vars(c)} - {"loss"}
    users_classes = method.__mro__[: method.__mro__.index(bases[0])]
    return any(
        isinstance(value, FunctionType | property) and name not in around
        for c in users_classes
        for name, value in vars(c).items()
        if not name.startswith("__")
    )


def extract_tensors(
    loss: Loss,
) -> tuple[Hashable, list[Tensor], Callable[[Sequence[Tensor]], Loss]]:
    """Return the part of a loss that all clients share, its tensors, and their replacement.

    loss: a function, a method's own hook, or a partial of one. The last result is a function: other
    tensors -> the loss with these tensors.

    Raises Unshareable if the arguments hold anything but tensors, plain values, clients, and
    Params, tuples and frozen dataclasses of them: such an object could change.
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


class Itself:
    """A key that is equal for one object alone, and keeps it, so that no other gets its address."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def identity(fn: Any) -> Hashable:
    """Return a key that is equal for equal functions."""
    if isinstance(fn, MethodType) and isinstance(fn.__self__, Section):
        return fn.__func__, Itself(fn.__self__)  # the method is a frozen record
    if isinstance(fn, FunctionType) and not (
        fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__
    ):
        return fn.__code__
    raise Unshareable(
        "it is neither a hook of a method nor a function without variables from around it"
    )


def plain(value: Any) -> bool:
    """Return whether a value cannot change."""
    if type(value) in (tuple, frozenset):
        return all(map(plain, value))
    return type(value) in PLAIN or isinstance(value, CONSTANT)


def outline(value: Any, tensors: list[Tensor]) -> Hashable:
    """Return what an objective that serves several clients has to have in common with this value.

    Its tensors are added to the list, in the order of `fill_tensors`.
    """
    kind = type(value)
    if isinstance(value, Tensor):
        tensors.append(value)
        return signature(value)
    if isinstance(value, Client):
        return Client, value.task
    if plain(value):
        return kind, repr(value)
    if isinstance(value, Params):
        return kind, tuple((name, outline(v, tensors)) for name, v in value.items())
    if isinstance(value, tuple):
        return kind, tuple(outline(v, tensors) for v in value)
    if is_dataclass(value) and value.__dataclass_params__.frozen:  # type: ignore[union-attr]
        return kind, tuple(outline(getattr(value, f.name), tensors) for f in fields(value))
    raise Unshareable(f"it holds a {kind.__name__}, which can change")


def fill_tensors(value: Any, left: Iterator[Tensor]) -> Any:
    """Return the same value with its tensors replaced by the next ones.

    A client is replaced by `Anyone`.
    """
    if isinstance(value, Tensor):
        return next(left)
    if isinstance(value, Client):
        return Anyone(value.task)
    if plain(value):
        return value
    if isinstance(value, Params):
        return Params({name: fill_tensors(v, left) for name, v in value.items()})
    if isinstance(value, tuple):
        parts = [fill_tensors(v, left) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return replace(
        value, **{f.name: fill_tensors(getattr(value, f.name), left) for f in fields(value)}
    )


def signature(value: Tensor) -> Hashable:
    """Return the properties of a tensor on which a captured step depends."""
    return value.shape, value.dtype, value.stride()


def settings(model: nn.Module) -> Hashable:
    """Return the modes and plain attributes of a model's modules, on which a captured step depends.

    Raises Unshareable if a module has hooks that may do anything.
    """
    attributes: list[Hashable] = []
    for module in model.modules():
        for name, value in vars(module).items():
            if name.endswith("_hooks") and value:
                if not all(isinstance(hook, PureHook) for hook in value.values()):
                    raise Unshareable(f"its model's {type(module).__name__} has a hook")
                attributes.append((name, repr(list(value.values()))))
            if name not in MODULE and plain(value):
                attributes.append((name, repr(value)))
    return tuple(attributes)


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
