"""Checks of a user's own method: of its class before the run, and of what its hooks return.

Methods that come with hpcfed are not checked here.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from math import isfinite
from numbers import Integral, Real
from types import FunctionType
from typing import Any

from torch import Tensor

from hpcfed.algorithms.base import Method, RoundBased
from hpcfed.algorithms.events import EventBased
from hpcfed.core import user_code
from hpcfed.core.errors import ConfigError
from hpcfed.core.inputs import count
from hpcfed.core.params import Mean
from hpcfed.federation.upload import Upload

OURS = {
    "hpcfed",
    "pydantic",
    "builtins",
    "abc",
    "typing",
}  # packages whose classes are not the user's
ACCEPTS = ("one architecture", "widths", "depths", "a common head", "any models")
NEEDS = ("public", "proxy", "server")
ELSEWHERE = {  # hooks, by their names in other frameworks
    "fit": "local",
    "client_update": "local",
    "local_update": "local",
    "aggregate": "server",
    "server_update": "server",
    "aggregate_fit": "server",
    "setup": "init",
    "criterion": "loss",
    "training_step": "loss",
    "forward": "loss",
    "evaluate": "predictor",
    "sample": "cohort",
    "select": "cohort",
    "end": "finish",
}
CALLERS = {"loss": ("local", "work"), "local": ("round",), "server": ("round",)}


def refuse(cls: type, where: str) -> None:
    """Raise ConfigError for a class that is not a valid method, or has members without effect.

    where: beginning of the message, such as "algorithm.name = 'mine:Mine'".
    """
    for wrong in wrongs(cls):
        raise ConfigError(f"{where}: {wrong}")


def wrongs(cls: type) -> Iterator[str]:
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
    trees = {c: tree for c in theirs if (tree := parse_source(c)) is not None}
    for c in theirs:
        yield from assignments(c, trees.get(c))
    used = {name for tree in trees.values() for name in references(tree)}
    replaced = {name for c in theirs for name in vars(c)}
    for c in theirs:
        yield from values(c, base)
        yield from (
            wrong
            for name, value in list(vars(c).items())
            if not name.startswith("_") and name not in pydantic_names(cls)
            for wrong in hook(c, name, value, base, used if c in trees else None, replaced)
        )


def is_users(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in OURS


def pydantic_names(cls: type) -> set[str]:
    """Return the names that pydantic calls: validators, serialisers, computed fields."""
    known = cls.__pydantic_decorators__  # type: ignore[attr-defined]
    kinds = [getattr(known, part.name) for part in fields(known)]
    return {name for kind in kinds for name in kind}


def parse_source(cls: type) -> ast.Module | None:
    """Parse the file in which a class is defined; None if it has no file, as in a notebook."""
    try:
        with open(inspect.getfile(cls), encoding="utf-8") as file:
            return ast.parse(file.read())
    except (OSError, TypeError, SyntaxError):
        return None


def references(tree: ast.Module) -> Iterator[str]:
    """Yield the names of attributes that are read, as in `self.name`, and all text constants.

    Text constants count because `getattr` takes names as text.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def assignments(cls: type, tree: ast.Module | None) -> Iterator[str]:
    """Yield a message for each assignment to an attribute of self, since methods are frozen."""
    private = cls.__private_attributes__  # type: ignore[attr-defined]
    for node in ast.walk(tree) if tree else ():
        if not isinstance(node, ast.ClassDef) or node.name != cls.__name__:
            continue
        for method in node.body:
            if not isinstance(method, ast.FunctionDef) or not method.args.args:
                continue
            first = method.args.args[0].arg
            for part in ast.walk(method):
                if (
                    isinstance(part, ast.Attribute)
                    and isinstance(part.ctx, ast.Store | ast.Del)
                    and isinstance(part.value, ast.Name)
                    and part.value.id == first
                    and part.attr not in private
                ):
                    file = user_code.display_path(inspect.getfile(cls))
                    told = user_code.explain_assignment(part.attr, method.name)
                    yield f"{file}, line {part.lineno}, in {method.name}: {told}"


def values(cls: type, base: type) -> Iterator[str]:
    """Yield what is wrong with the fields of the class, and with `accepts`, `needs` and `views`."""
    place = user_code.line_of(cls)
    for name in cls.__annotations__ if "__annotations__" in vars(cls) else ():
        if name in cls.model_fields and hasattr(base, name):  # type: ignore[attr-defined]
            if callable(getattr(base, name)):
                yield (
                    f"{place}: the field {name} has the name of a hook of {base.__name__}; give it "
                    f"another name"
                )
            else:
                yield (
                    f"{place}: {name} says what the method is, and is no field of the job; write "
                    f"`{name}: ClassVar = ...`"
                )
    for name, valid in (("accepts", ACCEPTS), ("needs", NEEDS)):
        given = vars(cls).get(name, ())
        given = (given,) if isinstance(given, str) else given
        if not isinstance(given, tuple | list):
            continue
        for value in given:
            if value not in valid:
                near = get_close_matches(str(value), valid, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                yield (f"{place}: {name} = {value!r}{hint}\n  valid: {', '.join(map(repr, valid))}")
    if isinstance(vars(cls).get("needs"), str):
        yield f"{place}: needs is a tuple; write `needs: ClassVar = ({vars(cls)['needs']!r},)`"
    views = vars(cls).get("views", 1)
    if not isinstance(views, property | FunctionType) and (
        not isinstance(views, int) or isinstance(views, bool) or views < 1
    ):
        yield (
            f"{place}: views = {views!r}; it is how many augmented copies of a batch there are, "
            f"1 or more"
        )


def hook(
    cls: type, name: str, value: Any, base: type, used: set[str] | None, replaced: set[str]
) -> Iterator[str]:
    """Yield what is wrong with one public name of the class.

    used: names that the class's own code refers to; None if its source cannot be read.
    replaced: names that the user's classes define.
    """
    fn = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if isinstance(fn, property):
        fn = fn.fget
    if not isinstance(fn, FunctionType):
        return
    place = user_code.line_of(fn)
    if not hasattr(base, name):
        if used is not None and name not in used:
            yield f"{place}: {misspelt(cls, name, base)}"
        return
    theirs = inspect.getattr_static(base, name)
    if not isinstance(theirs, FunctionType) and isinstance(value, FunctionType):
        yield (
            f"{place}: {name} is a value of {base.__name__}, not a method; put @property above it, "
            f"or write `{name}: ClassVar = ...`"
        )
    if not isinstance(theirs, FunctionType) or isinstance(value, property):
        return
    if name in (used or ()) and replaced.intersection(CALLERS.get(name, ())):
        return  # only the user's own code calls it
    want = list(inspect.signature(theirs).parameters)[1:]
    given = inspect.signature(fn)
    have = [p for p in given.parameters if p not in ("self", "cls")]
    called = want if isinstance(value, staticmethod) else ["self", *want]
    try:
        given.bind(*called)
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
    hooks = [
        n
        for kind in base.__mro__
        if issubclass(kind, Method)
        for n, v in vars(kind).items()
        if isinstance(v, FunctionType) and not n.startswith("_")
    ]
    near = get_close_matches(name, hooks, n=1) or [
        ELSEWHERE[name] for _ in (0,) if ELSEWHERE.get(name) in hooks
    ]
    hint = f"; did you mean {near[0]}?" if near else ""
    return (
        f"{cls.__name__}.{name} is no hook of {base.__name__}, and nothing calls it{hint}\n"
        f"  name it after a hook ({', '.join(sorted(set(hooks)))}), call it, or begin its name "
        f"with _"
    )


def guard(model: type, cls: type) -> None:
    """Wrap the hooks of a user's class so that their results are checked at each call.

    model: class of the run's algorithm, a subclass of cls.
    """
    for name, check in (CHECKS | {"predictor": is_function}).items():
        holder = next((c for c in cls.__mro__ if name in vars(c)), None)
        fn = vars(holder).get(name) if holder else None
        if holder and is_users(holder) and isinstance(fn, FunctionType):
            checked = add_check(fn, check)
            setattr(model, name, check_answers(checked) if name == "predictor" else checked)


def add_check(fn: Callable, check: Callable) -> Callable:
    """Return the hook with a check; it raises OwnError if it returns what its caller cannot use."""

    @wraps(fn)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        made = fn(self, *args, **named)
        if wrong := check(self, made, *args):
            raise user_code.OwnError(
                f"{user_code.line_of(fn)}: {type(self).__name__}.{fn.__name__} returns "
                f"{kind(made)}; {wrong}"
            )
        return made

    return call


def check_answers(predictor: Callable) -> Callable:
    """Return the hook `predictor` with a check of what its function returns, at each call."""

    @wraps(predictor)
    def call(self: Any, fed: Any, client: Any, state: Any) -> Any:
        answer = predictor(self, fed, client, state)
        if answer is client.model:
            return answer

        def checked(x: Any) -> Any:
            made = answer(x)
            if wrong := scores(fed, x, made):
                raise user_code.OwnError(
                    f"{user_code.line_of(predictor)}: the function that {type(self).__name__}."
                    f"predictor gives returns {kind(made)}; {wrong}"
                )
            return made

        return checked

    return call


def kind(made: Any) -> str:
    """Describe a returned value in words."""
    if made is None:
        return "None (is a `return` missing?)"
    if isinstance(made, Tensor):
        return f"a tensor of shape {list(made.shape)}"
    short = isinstance(made, Real | str | tuple | list) and len(repr(made)) < 60
    return repr(made) if short else f"a {type(made).__name__}"


def is_plain(method: Any, *hooks: str) -> bool:
    """Return whether these hooks are those of RoundBased."""
    return all(
        getattr(type(method), name, None) is getattr(RoundBased, name, None) for name in hooks
    )


def state(method: Any, made: Any, *args: Any) -> str:
    """Check the result of init, server or round: the server's state."""
    if isinstance(method, RoundBased) and is_plain(method, "round", "model"):
        if isinstance(made, Mapping):
            return ""
        return "return the state as Params, tensors by name, or replace `model` as well"
    return "return the server's state, Params for one" if made is None else ""


def check_offer(method: Any, made: Any, *args: Any) -> str:
    if made is None and is_plain(method, "receive"):
        return "return what the client receives, the state for one"
    return ""


def check_upload(method: Any, made: Any, *args: Any) -> str:
    """Check the result of local, which `round` averages."""
    if not is_plain(method, "round"):
        return ""
    means = made.value if isinstance(made, Upload) else made
    parts = means if isinstance(means, dict) else {"": means}
    if not isinstance(made, Upload) or not all(isinstance(v, Mean) for v in parts.values()):
        return (
            "return what is averaged, as in "
            "`Upload(Mean.of(client.params(self.shared), self.weight(client)))`"
        )
    keep = method.averaged(args[2]) if len(args) > 2 else None
    if not isinstance(keep, Mapping):
        return ""
    kept = {"": keep} if "" in parts else keep
    if kept.keys() != parts.keys():
        return f"its parts are {some(parts)}, but those of `averaged` are {some(kept)}"
    return next(filter(None, (check_part(parts[n], kept[n], method) for n in parts)), "")


def check_part(mean: Mean, keep: Mapping[str, Tensor], method: Any) -> str:
    """Check the names and shapes of what a client sends against what the mean keeps."""
    for part in mean.terms:
        for name, value in part.value.items():
            if name not in keep:
                return (
                    f"it holds {name!r}, but the server's state holds {some(keep)}; send tensors "
                    f"of the names that `init` and `server` return"
                )
            if not part.at and value.shape != keep[name].shape:
                return (
                    f"{name!r} has the shape {list(value.shape)}, in the server's state it "
                    f"is {list(keep[name].shape)}"
                )
        absent = [name for name in keep if name not in part.value]
        if absent and method.per == "mean":
            return (
                f"it lacks {absent[0]!r}, which the server's state holds; send all that `init` and "
                f"`server` return, or let these return less"
            )
    return ""


def some(names: Mapping[str, Any]) -> str:
    """Return the first few names, for a message."""
    return ", ".join(list(names)[:4]) + (", ..." if len(names) > 4 else "")


def is_function(method: Any, made: Any, *args: Any) -> str:
    return "" if callable(made) else "return a function of inputs x, `client.model` for one"


def scores(fed: Any, x: Any, made: Any) -> str:
    """Check what the function that `predictor` returned gives for inputs x."""
    if not isinstance(made, Tensor) or made.dim() != 2 or not made.is_floating_point():
        return "return scores of the classes, [n, C], as client.model(x) does"
    if tuple(made.shape) != (count(x), fed.classes):
        return f"return scores of the classes, here {[count(x), fed.classes]}"
    return ""


def members(method: Any, made: Any, *args: Any) -> str:
    """Check the result of cohort: ids of clients."""
    K = args[0].K if args else 0
    try:
        ids = [int(k) for k in made]
    except (TypeError, ValueError):
        return "return the ids of the clients, a list of int, as fed.sample(t) does"
    if not all(0 <= k < K for k in ids) or ids != sorted(set(ids)):
        return f"return ids of clients, 0 to {K - 1}, each once, in ascending order"
    return ""


def bytes_both_ways(method: Any, made: Any, *args: Any) -> str:
    pair = isinstance(made, tuple | list) and len(made) == 2
    if pair and all(isinstance(n, Integral) and int(n) >= 0 for n in made):
        return ""
    return "return two whole numbers: the bytes that the client receives and sends in a round"


def truth(method: Any, made: Any, *args: Any) -> str:
    return "" if type(made).__name__ in ("bool", "bool_") else "return True or False"


def amount(method: Any, made: Any, *args: Any) -> str:
    if isinstance(made, Real) and isfinite(made) and float(made) >= 0:
        return ""
    return "return a number, 0 or more"


def table(method: Any, made: Any, *args: Any) -> str:
    good = isinstance(made, Mapping) and all(isinstance(v, Real) for v in made.values())
    return "" if good else "return numbers by name, {} where there are none"


def reasons(method: Any, made: Any, *args: Any) -> str:
    if isinstance(made, dict) and all(isinstance(v, str) for kv in made.items() for v in kv):
        return ""
    return (
        'return reasons by field, and under "job" why the method cannot run it, as in '
        '`super().refuses(job) | {"job": "needs ...; set ..."}`'
    )


CHECKS: dict[str, Callable[..., str]] = {
    "init": state,
    "server": state,
    "round": state,
    "offer": check_offer,
    "local": check_upload,
    "cohort": members,
    "traffic": bytes_both_ways,
    "shared": truth,
    "weight": amount,
    "seconds": amount,
    "columns": table,
    "refuses": reasons,
}
