"""Search for side effects that a recording of a step would miss.

A step is recorded once and then replayed as tensor operations. If its Python code writes into a
list, an attribute or a global, the recording would do so once instead of in every step. Other
values that it reads beside its tensors would never change. So an objective is recorded only if
nothing of this is found in its code, its method, its model and the functions that it calls;
otherwise it trains with the eager engine. The search reads the code statically, and compares the
model's attributes before and after the recording. It trusts torch and this package, and cannot see
what libraries hide from it.
"""

from __future__ import annotations

import builtins
import dis
import inspect
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache, partial
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed.config.sections import Section


class Untraceable(Exception):
    """The reason why a local objective cannot be recorded."""


PLAIN = (str, bytes, int, float, complex, bool, type(None), range, slice, type(...))
CONSTANT = (np.generic, Enum, PurePath, torch.dtype, torch.device, torch.Size, np.ufunc)
TRUSTED = {"torch", "hpcfed", "math", "operator", "typing", "builtins"}
WRITERS = {"setattr", "delattr", "exec", "eval", "open", "input", "globals", "vars"}  # built in
BASE = frozenset(vars(nn.Module())) - {"training"}  # attributes that every module has
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
BACKWARD = ("_backward_pre_hooks", "_backward_hooks")

Read = tuple[Any, str]  # a module or class, and the name of a value in it
Found = tuple[str, tuple[Read, ...]]  # why code cannot be recorded ("": it can), and what it reads


def is_trusted(value: Any) -> bool:
    """Return whether a function or class is torch's, this package's or built in."""
    return (getattr(value, "__module__", None) or "").partition(".")[0] in TRUSTED


def plain(value: Any) -> bool:
    """Return whether a value cannot change."""
    if type(value) in (tuple, frozenset):
        return all(map(plain, value))
    return type(value) in PLAIN or isinstance(value, CONSTANT)


def against(value: Any, name: str) -> str:
    """Return why code that reads this value cannot be recorded; "" if it can."""
    if isinstance(value, staticmethod | classmethod):
        return against(value.__func__, name)
    if isinstance(value, property):
        return against(value.fget, name)
    if isinstance(value, partial):
        parts = (value.func, *value.args, *value.keywords.values())
        return next(filter(None, (against(part, name) for part in parts)), "")
    if isinstance(value, FunctionType):
        return "" if is_trusted(value) else of_function(value)[0]
    if isinstance(value, MethodType) and isinstance(value.__self__, type):
        return against(value.__func__, name)
    owner = getattr(value, "__self__", None) if isinstance(value, BuiltinFunctionType) else value
    if owner is None or isinstance(owner, ModuleType | type) or plain(owner):
        return ""
    kind = type(owner)
    changes = isinstance(owner, Tensor | torch.Generator | np.ndarray | np.random.RandomState)
    if kind.__module__.partition(".")[0] in ("torch", "numpy", "typing") and not changes:
        return ""  # a loss module, a ufunc, a type
    return f"it reads {name}, a {kind.__name__}, which can change"


def chains(code: CodeType) -> Iterator[tuple[str, ...]]:
    """Yield the dotted global names that code reads, as tuples of their parts."""
    steps = list(dis.get_instructions(code))
    for i, step in enumerate(steps):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names = [step.argval]
            for after in steps[i + 1 :]:
                if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                names.append(after.argval)
            yield tuple(names)


def writes(code: CodeType, attributes: bool) -> str:
    """Return what code imports, or writes outside its own variables; "" if nothing.

    attributes: whether setting an attribute counts too.
    """
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return f"it sets the global {step.argval}"
        if step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars:
            return f"it sets the variable {step.argval} from around it"
        if attributes and step.opname in ("STORE_ATTR", "DELETE_ATTR"):
            return f"it sets the attribute {step.argval}"
        if step.opname == "IMPORT_NAME" and step.argval.partition(".")[0] not in TRUSTED:
            return f"it imports {step.argval}"
    return ""


@lru_cache(maxsize=4096)
def of_function(fn: FunctionType, cls: type | None = None, attributes: bool = True) -> Found:
    """Return why a function cannot be recorded, and the values that it and its callees read.

    cls: the class whose method it is; names of attributes may be its methods.
    attributes: whether setting an attribute is a reason.
    """
    active: set[CodeType] = set()
    reads: list[Read] = []
    own = cls.__mro__ if cls else ()

    def closure(f: FunctionType) -> str:
        cells = zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                value = cell.cell_contents
            except ValueError:  # it is still empty
                continue
            if plain(value):
                reads.append((cell, "cell_contents"))
            elif name != "__class__" and (why := called(value, name)):
                return why
        defaults = (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values())
        return next(filter(None, (called(v, "a default value") for v in defaults)), "")

    def called(value: Any, name: str) -> str:
        while isinstance(value, staticmethod | classmethod | property):
            value = value.fget if isinstance(value, property) else value.__func__
        if isinstance(value, FunctionType) and not is_trusted(value):
            return function(value)
        return against(value, name)

    def function(f: FunctionType) -> str:
        if f.__code__ in active:
            return ""
        active.add(f.__code__)
        return closure(f) or body(f.__code__, f.__globals__)

    def body(code: CodeType, namespace: dict[str, Any]) -> str:
        if why := writes(code, attributes):
            return why
        for names in chains(code):
            if why := chain(names, namespace):
                return why
        for name in code.co_names if cls else ():
            for value in (vars(c)[name] for c in own if name in vars(c) and not is_trusted(c)):
                if plain(value):
                    reads.append((cls, name))
                elif why := called(value, f"the class attribute {name}"):
                    return why
        inner = (const for const in code.co_consts if isinstance(const, CodeType))
        return next(filter(None, (body(part, namespace) for part in inner)), "")

    def chain(names: Sequence[str], namespace: dict[str, Any]) -> str:
        first, *rest = names
        if first not in namespace:
            return f"it calls {first}" if first in WRITERS else ""
        owner: Any = namespace
        at, value = [first], namespace[first]
        for name in rest:
            if not isinstance(value, ModuleType | type) or is_trusted_root(value):
                break
            at.append(name)
            owner, value = value, inspect.getattr_static(value, name, None)
        if plain(value):
            reads.append((owner, at[-1]))
            return ""
        return called(value, ".".join(at))

    return function(fn), tuple(reads)


def is_trusted_root(value: Any) -> bool:
    """Return whether a module or class is torch's or this package's."""
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    return name.partition(".")[0] in TRUSTED and value is not builtins


def values(reads: Sequence[Read]) -> Hashable:
    """Return the present values of these reads, as a part of a recording's key.

    Raises Untraceable if one of them can change.
    """
    found = []
    for owner, name in reads:
        value = owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)
        if not plain(value):
            raise Untraceable(f"it reads {name}, a {type(value).__name__}, which can change")
        found.append((name, repr(value)))
    return tuple(found)


def of_objective(fn: FunctionType, method: Section | None = None) -> Hashable:
    """Return the values, beside its code, on which a recording of this objective depends.

    method: the algorithm whose hook it is. Raises Untraceable if the objective, or a function that
    it calls, may write into something that lasts, or read something that may change.
    """
    cls = type(method) if method is not None else None
    names = {name for own in own_classes(cls) for name in vars(own)} if cls else set()
    if is_trusted(fn) and names.isdisjoint(fn.__code__.co_names):
        return ()  # no user's code is called
    own = of_method(method) if method is not None else ()
    why, reads = of_function(fn, cls)
    if why:
        raise Untraceable(why)
    return own, values(reads)


def own_classes(cls: type) -> list[type]:
    """Return the classes of a method that are no part of this package."""
    return [
        c for c in cls.__mro__ if not is_trusted(c) and c.__module__.partition(".")[0] != "pydantic"
    ]


def of_method(method: Section) -> Hashable:
    """Return the values in a method's classes, as a part of a recording's key.

    Raises Untraceable if the method holds something that can change: a field, a class attribute, a
    private attribute, or anything if it is not frozen.
    """
    if not method.model_config.get("frozen"):
        raise Untraceable("its method is not frozen")
    if private := method.__pydantic_private__:
        raise Untraceable(f"its method has the private attribute {next(iter(private))}")
    for name, value in vars(method).items():
        if isinstance(value, Section):
            of_method(value)
        elif not plain(value):
            raise Untraceable(f"its method's {name} is a {type(value).__name__}, which can change")
    classes = own_classes(type(method))
    kept = [c for c in type(method).__mro__ if c not in classes]  # their names are settings
    found = []
    for cls in classes:
        for name, value in vars(cls).items():
            if name.startswith(("__", "model_", "_abc_")) or any(name in vars(c) for c in kept):
                continue
            if isinstance(value, FunctionType | property | staticmethod | classmethod | type):
                continue  # examined when they are called
            if not plain(value):
                raise Untraceable(
                    f"its method's {name} is a {type(value).__name__}, which can change"
                )
            found.append((name, repr(value)))
    return tuple(found)


def of_model(model: nn.Module) -> Hashable:
    """Return the settings of a model's modules on which a recording depends.

    They are modes, plain attributes and hooks. Raises Untraceable if a hook, or code of a module
    that is no part of torch or this package, may write into something that lasts other than the
    module, or read something that may change.
    """
    found: list[Hashable] = []
    for module in model.modules():
        own = vars(module)
        if any(own.get(kind) for kind in BACKWARD):
            raise Untraceable(f"its model's {type(module).__name__} has a backward hook")
        for kind in HOOKS:
            found.extend(of_hook(hook, module) for hook in own[kind].values())
        if not is_trusted(type(module)):
            cls: Any = type(module)
            why, reads = of_function(cls.forward, cls, attributes=False)
            if why:
                raise Untraceable(f"its model's {type(module).__name__}: {why}")
            found.append(values(reads))
        found.extend(
            (name, repr(value)) for name, value in own.items() if name not in BASE and plain(value)
        )
    for p in model.parameters():
        if p._backward_hooks:
            raise Untraceable("a parameter of its model has a hook")
    return tuple(found)


def of_hook(hook: Any, module: nn.Module) -> Hashable:
    """Return the code and values of a module's hook, as a part of a recording's key.

    Raises Untraceable if the hook cannot be recorded.
    """
    if not isinstance(hook, FunctionType):
        raise Untraceable(f"its model's {type(module).__name__} has a hook that is no function")
    cells = [cell.cell_contents for cell in hook.__closure__ or ()]
    why, reads = of_function(hook)
    if not why and not all(map(plain, cells)):
        why = "it has variables from around it"
    if why:
        raise Untraceable(f"its model's {type(module).__name__} has a hook: {why}")
    return hook.__code__, tuple(map(repr, cells)), values(reads)


def contents(value: Any) -> Any:
    """Return a shallow copy of the mutable contents of a value; None if it has none."""
    if isinstance(value, list | dict | set | deque | bytearray | np.ndarray):
        return value.copy()
    named = not isinstance(value, nn.Module | type | ModuleType | FunctionType | Tensor)
    return dict(vars(value)) if named and hasattr(value, "__dict__") else None


def differs(value: Any, before: Any) -> bool:
    """Return whether a value's contents have changed."""
    now = contents(value)
    if isinstance(now, np.ndarray):
        return not np.array_equal(now, before, equal_nan=now.dtype.kind == "f")
    if isinstance(now, dict):
        return now.keys() != before.keys() or any(now[k] is not before[k] for k in now)
    if isinstance(now, list | deque):
        return len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True))
    return now != before


def put_back(value: Any, before: Any) -> None:
    """Restore a value's previous contents."""
    if isinstance(value, np.ndarray):
        value[...] = before
    elif isinstance(value, list | bytearray):
        value[:] = before
    elif before is not None:
        held = value if isinstance(value, dict | set | deque) else vars(value)
        held.clear()
        held.extend(before) if isinstance(held, deque) else held.update(before)


@contextmanager
def undo_writes(model: nn.Module) -> Iterator[None]:
    """Undo writes into the model's attributes while a step is recorded in the block.

    Raises Untraceable if there were any.
    """

    def watched(module: nn.Module, name: str) -> bool:  # torch's modules have private state
        return name not in BASE and not (name.startswith("_") and is_trusted(type(module)))

    before = {
        module: {
            name: (value, contents(value))
            for name, value in vars(module).items()
            if watched(module, name)
        }
        for module in model.modules()
    }
    changed = ""
    try:
        yield
    finally:
        for module, attributes in before.items():
            now = vars(module)
            for name in [n for n in now if watched(module, n) and n not in attributes]:
                del now[name]
                changed = changed or f"{type(module).__name__}.{name}"
            for name, (value, held) in attributes.items():
                if now.get(name) is not value or differs(value, held):
                    now[name] = value
                    put_back(value, held)
                    changed = changed or f"{type(module).__name__}.{name}"
    if changed:
        raise Untraceable(f"it writes into {changed} of its model")
