"""Checks of a user's own method: of its class before the run, and of what its hooks return.

Methods that come with hpcfed are not checked here. Mistakes that raise an exception in the user's
own file are left to the trial of the method (`hpcfed.engine.method_trial`).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from math import isfinite
from numbers import Integral, Real
from types import FunctionType
from typing import Any

from torch import Tensor

from hpcfed.algorithms.base import Method, RoundBased, is_plain
from hpcfed.algorithms.events import EventBased
from hpcfed.core import user_code
from hpcfed.core.errors import ConfigError
from hpcfed.core.inputs import count
from hpcfed.core.params import Mean
from hpcfed.federation.upload import Upload

LIBRARIES = {"hpcfed", "pydantic", "builtins", "abc", "typing"}  # whose classes are not the user's
CHOICES = {  # valid values of declarations
    "accepts": ("one architecture", "widths", "depths", "a common head", "any models"),
    "needs": ("public", "proxy", "server"),
}
CALLERS = {
    "loss": ("local", "work"),
    "local": ("round",),
    "aggregate": ("round",),
    "server": ("round",),
}


def refuse(cls: type, where: str) -> None:
    """Raise ConfigError for a class that is not a valid method, or has members without effect.

    where: beginning of the message, such as "algorithm.name = 'mine:Mine'".
    """
    for mistake in mistakes(cls):
        raise ConfigError(f"{where}: {mistake}")


def mistakes(cls: type) -> Iterator[str]:
    """Yield what is wrong with the class, one sentence each, with its place in the file."""
    if not issubclass(cls, RoundBased | EventBased):
        yield (
            f"{user_code.line_of(cls)}: {cls.__name__} is a {cls.__bases__[0].__name__}; make it a "
            f"subclass of RoundBased (hpcfed.algorithms.base) or EventBased "
            f"(hpcfed.algorithms.events)"
        )
        return
    theirs = [c for c in cls.__mro__ if is_users(c)]
    base = next(c for c in cls.__mro__ if not is_users(c))
    called = {c: references(c) for c in theirs}
    used = set().union(*(names for names in called.values() if names))
    replaced = {name for c in theirs for name in vars(c)}
    for c in theirs:
        yield from declarations(c, base)
        for name, value in list(vars(c).items()):
            if not name.startswith("_") and name not in pydantic_names(cls):
                names = used if called[c] is not None else None
                yield from hook(c, name, value, base, names, replaced)


def is_users(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in LIBRARIES


def pydantic_names(cls: type) -> set[str]:
    """Return the names that pydantic calls: validators, serialisers, computed fields."""
    decorators = cls.__pydantic_decorators__  # type: ignore[attr-defined]
    return {name for part in fields(decorators) for name in getattr(decorators, part.name)}


def references(cls: type) -> set[str] | None:
    """Return the names of attributes that the file of a class reads, as in `self.name`.

    Text constants are among them, because `getattr` takes names as text. None: the class has no
    file, as in a notebook.
    """
    try:
        with open(inspect.getfile(cls), encoding="utf-8") as file:
            nodes = list(ast.walk(ast.parse(file.read())))
    except (OSError, TypeError, SyntaxError):
        return None
    texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    reads = (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    return texts | {node.attr for node in reads}


def declarations(cls: type, base: type) -> Iterator[str]:
    """Yield what is wrong with the fields and declarations of the class."""
    place = user_code.line_of(cls)
    if isinstance(init := vars(cls).get("__init__"), FunctionType):
        yield (
            f"{user_code.line_of(init)}: an algorithm has no __init__; write a parameter as a "
            f"field of the class, `mu: float = 0.1`, and read it as self.mu"
        )
    for name in cls.__annotations__ if "__annotations__" in vars(cls) else ():
        if name in cls.model_fields and hasattr(base, name):  # type: ignore[attr-defined]
            yield f"{place}: " + (
                f"the field {name} has the name of a hook of {base.__name__}; give it another name"
                if callable(getattr(base, name))
                else f"{name} says what the method is, and is not a field of the job; write "
                f"`{name}: ClassVar = ...`"
            )
    for name, valid in CHOICES.items():
        value = vars(cls).get(name, ())
        for one in value if isinstance(value, tuple) else (value,):
            if not isinstance(one, property) and (one not in valid or value in CHOICES["needs"]):
                near = get_close_matches(str(one), valid, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                choices = ", ".join(map(repr, valid))
                form = ", a tuple of these" if name == "needs" else ""
                yield f"{place}: {name} = {value!r}{hint}\n  valid: {choices}{form}"


def hook(
    cls: type, name: str, value: Any, base: type, used: set[str] | None, replaced: set[str]
) -> Iterator[str]:
    """Yield what is wrong with one public name of the class.

    used: names that the user's files refer to; None if the class has no file.
    replaced: names that the user's classes define.
    """
    fn = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    fn = fn.fget if isinstance(fn, property) else fn
    if not isinstance(fn, FunctionType):
        return
    place = user_code.line_of(fn)
    if not hasattr(base, name):
        if used is not None and name not in used:
            yield f"{place}: {misspelt(cls, name, base)}"
        return
    default = inspect.getattr_static(base, name)
    if not isinstance(default, FunctionType):
        if isinstance(value, FunctionType):
            yield (
                f"{place}: {name} is a value of {base.__name__}, not a method; put @property above "
                f"it, or write `{name}: ClassVar = ...`"
            )
        return
    if isinstance(value, property) or (
        name in (used or ()) and replaced.intersection(CALLERS.get(name, ()))
    ):
        return  # only the user's own code calls it
    want = list(inspect.signature(default).parameters)[1:]
    signature = inspect.signature(fn)
    have = [p for p in signature.parameters if p not in ("self", "cls")]
    try:
        signature.bind(*want if isinstance(value, staticmethod) else ["self", *want])
        fits = set(have[: len(want)]) != set(want) or have[: len(want)] == want
    except TypeError:
        fits = False
    if not fits:
        yield (
            f"{place}: {cls.__name__}.{name} takes ({', '.join(have)}), but is called with "
            f"({', '.join(want)}); write `def {name}(self, {', '.join(want)}):`"
        )


def misspelt(cls: type, name: str, base: type) -> str:
    """Return the message for a method that is not a hook and that nothing calls."""
    kinds = (kind for kind in base.__mro__ if issubclass(kind, Method))
    members = (pair for kind in kinds for pair in vars(kind).items())
    hooks = {n for n, v in members if isinstance(v, FunctionType) and not n.startswith("_")}
    near = get_close_matches(name, hooks, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return (
        f"{cls.__name__}.{name} is not a hook of {base.__name__}, and nothing calls it{hint}\n"
        f"  name it after a hook ({', '.join(sorted(hooks))}), call it, or begin its name with _"
    )


def guard(model: type, cls: type) -> None:
    """Wrap the hooks of a user's class so that their results are checked at each call.

    model: class of the run's algorithm, a subclass of cls.
    """
    for name, check in CHECKS.items():
        owner = next((c for c in cls.__mro__ if name in vars(c)), None)
        fn = vars(owner).get(name) if owner else None
        if owner and is_users(owner) and isinstance(fn, FunctionType):
            checked = add_check(fn, check)
            setattr(model, name, check_answers(checked) if name == "predictor" else checked)


def add_check(fn: Callable, check: Callable) -> Callable:
    """Return the hook with a check; it raises OwnError if it returns what its caller cannot use."""

    @wraps(fn)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        result = fn(self, *args, **named)
        if advice := check(self, result, *args):
            raise user_code.OwnError(
                f"{user_code.line_of(fn)}: {type(self).__name__}.{fn.__name__} returns "
                f"{describe(result)}; {advice}"
            )
        return result

    return call


def check_answers(predictor: Callable) -> Callable:
    """Return the hook `predictor` with a check of what its function returns, at each call."""

    @wraps(predictor)
    def call(self: Any, fed: Any, client: Any, state: Any) -> Any:
        answer = predictor(self, fed, client, state)
        if answer is client.model:
            return answer

        def checked(x: Any) -> Any:
            z = answer(x)
            shape = [count(x), fed.classes]
            if not isinstance(z, Tensor) or list(z.shape) != shape or not z.is_floating_point():
                raise user_code.OwnError(
                    f"{user_code.line_of(predictor)}: the function that {type(self).__name__}."
                    f"predictor gives returns {describe(z)}; return a row of outputs for each "
                    f"example, [n, C] as client.model(x) does, here {shape}"
                )
            return z

        return checked

    return call


def describe(result: Any) -> str:
    """Describe a returned value in words."""
    if result is None:
        return "None (is a `return` missing?)"
    if isinstance(result, Tensor):
        return f"a tensor of shape {list(result.shape)}"
    short = isinstance(result, Real | str | tuple | list) and len(repr(result)) < 60
    return repr(result) if short else f"a {type(result).__name__}"


def state(method: Any, result: Any, *args: Any) -> str:
    """Check the result of init, server or round: the server's state."""
    if isinstance(method, RoundBased) and is_plain(method, "round", "model"):
        if isinstance(result, Mapping):
            return ""
        return "return the state as Params, tensors by name, or replace `model` as well"
    return "return the server's state, Params for one" if result is None else ""


def upload(method: Any, result: Any, *args: Any) -> str:
    """Check the result of local, which the default `aggregate` averages."""
    if not is_plain(method, "round", "aggregate"):
        return ""
    means = result.value if isinstance(result, Upload) else result
    parts = means if isinstance(means, dict) else {"": means}
    if not isinstance(result, Upload) or not all(isinstance(v, Mean) for v in parts.values()):
        return (
            "return what is averaged, as in "
            "`Upload(Mean.of(client.params(self.shared), self.weight(client)))`"
        )
    keep = method.averaged(args[2]) if len(args) > 2 else None
    if not isinstance(keep, Mapping):
        return ""
    wanted = {"": keep} if "" in parts else keep
    if wanted.keys() != parts.keys():
        return f"its parts are {some(parts)}, but those of `averaged` are {some(wanted)}"
    return next(filter(None, (part_of(parts[n], wanted[n], method) for n in parts)), "")


def part_of(mean: Mean, keep: Mapping[str, Tensor], method: Any) -> str:
    """Check the names and shapes of what a client sends against what the mean keeps."""
    for term in mean.terms:
        for name, value in term.value.items():
            if name not in keep:
                return (
                    f"it holds {name!r}, but the server's state holds {some(keep)}; send tensors "
                    f"of the names that `init` and `server` return"
                )
            if not term.at and value.shape != keep[name].shape:
                return (
                    f"{name!r} has the shape {list(value.shape)}, in the server's state it "
                    f"is {list(keep[name].shape)}"
                )
        missing = [name for name in keep if name not in term.value]
        if missing and method.per == "mean":
            return (
                f"it lacks {missing[0]!r}, which the server's state holds; send all that `init` "
                f"and `server` return, or let these return less"
            )
    return ""


def some(names: Mapping[str, Any]) -> str:
    """Return the first few names, for a message."""
    return ", ".join(list(names)[:4]) + (", ..." if len(names) > 4 else "")


def members(method: Any, result: Any, fed: Any, *args: Any) -> str:
    """Check the result of cohort: ids of clients."""
    ids = list(result) if isinstance(result, Iterable) else [result]
    if all(isinstance(k, Integral) for k in ids) and ids == sorted({*ids} & {*range(fed.K)}):
        return ""
    return f"return ids of clients, 0 to {fed.K - 1}, each once, in ascending order, as fed.sample"


def returns(test: Callable[[Any], bool], advice: str) -> Callable[..., str]:
    """Return the check that a result passes a test; advice: what the hook has to return."""
    return lambda method, result, *args: "" if test(result) else advice


def is_amount(value: Any) -> bool:
    return isinstance(value, Real) and isfinite(value) and float(value) >= 0


AMOUNT = returns(is_amount, "return a number, 0 or more")
CHECKS: dict[str, Callable[..., str]] = {
    "init": state,
    "server": state,
    "round": state,
    "local": upload,
    "cohort": members,
    "weight": AMOUNT,
    "seconds": AMOUNT,
    "predictor": returns(callable, "return a function of inputs x, `client.model` for one"),
    "shared": returns(lambda v: type(v).__name__ in ("bool", "bool_"), "return True or False"),
    "columns": returns(
        lambda v: isinstance(v, Mapping) and all(isinstance(n, Real) for n in v.values()),
        "return numbers by name, {} if there are none",
    ),
    "traffic": returns(
        lambda v: isinstance(v, tuple | list) and len(v) == 2 and all(map(is_amount, v)),
        "return two whole numbers: the bytes that the client receives and sends in a round",
    ),
    "refuses": returns(
        lambda v: (
            isinstance(v, dict) and all(isinstance(text, str) for kv in v.items() for text in kv)
        ),
        'return reasons by field, and under "job" why the method cannot run it, as in '
        '`super().refuses(job) | {"job": "needs ...; set ..."}`',
    ),
}
