"""Checks of a user's own method: of its class before the run, and of what its hooks return.

Methods that come with hpcfed are not checked here. Mistakes that raise an exception in the user's
own file are left to the trial of the method (`hpcfed.engine.method_trial`).
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from math import inf
from numbers import Integral, Real
from pathlib import Path
from textwrap import dedent
from types import FunctionType
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, PydanticUndefined, to_jsonable_python
from torch import Tensor

from hpcfed.algorithms.base import Method, RoundBased, is_plain
from hpcfed.algorithms.events import EventBased
from hpcfed.config.fields import default_of, kind_of
from hpcfed.config.validation_messages import reason
from hpcfed.core import user_code
from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.inputs import count
from hpcfed.core.params import Mean, Params, first_misfit
from hpcfed.core.wording import join_few
from hpcfed.federation.upload import Upload

LIBRARIES = {"hpcfed", "pydantic", "builtins", "abc", "typing"}  # whose classes are not the user's
SCALARS = ("int", "float", "bool", "str")
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
    theirs = users_classes(cls)
    base = next(c for c in cls.__mro__ if not is_users(c))
    used = set().union(*map(references, theirs))
    replaced = {name for c in theirs for name in vars(c)}
    for c in theirs:
        yield from declarations(c, base)
        for name, value in list(vars(c).items()):
            if not name.startswith("_") and name not in pydantic_names(cls):
                yield from hook(c, name, value, base, used, replaced)
    yield from defaults(cls, theirs)


def is_users(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in LIBRARIES


def users_classes(cls: type) -> list[type]:
    """Return those of a class and its bases that are the user's."""
    return [c for c in cls.__mro__ if is_users(c)]


def pydantic_names(cls: type) -> set[str]:
    """Return the names that pydantic calls: validators, serialisers, computed fields."""
    decorators = cls.__pydantic_decorators__  # type: ignore[attr-defined]
    return {name for part in fields(decorators) for name in getattr(decorators, part.name)}


def references(cls: type) -> set[str]:
    """Return the names that the file of a class uses, as in `self.name` or getattr(self, "name").

    A class without a file, as in a notebook, may use all of its names.
    """
    try:
        text = Path(inspect.getfile(cls)).read_text(encoding="utf-8")
    except (OSError, TypeError, UnicodeDecodeError):
        return {*vars(cls)}
    return {*re.findall(r"""(?<=[."'])\w+""", text)}


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
        if name == "needs" and isinstance(value, str):
            yield f"{place}: needs = {value!r} is no tuple; write `needs: ClassVar = ({value!r},)`"
            continue
        for one in value if isinstance(value, tuple) else (value,):
            if not isinstance(one, property) and one not in valid:
                yield f"{place}: {name}: {unknown('value', one, valid)}"


def defaults(cls: type, theirs: list[type]) -> Iterator[str]:
    """Yield which fields have a default that a job cannot hold, or that is not of their type.

    A run with such a default could not be resumed, because its stored job is checked.
    theirs: the user's classes among cls and its bases.
    """
    owner = {name: c for c in theirs[::-1] for name in vars(c).get("__annotations__", ())}
    model_fields: Mapping[str, FieldInfo] = cls.model_fields  # type: ignore[attr-defined]
    where = {name: user_code.line_of(owner[name]) for name in owner if name in model_fields}
    for name, place in where.items():
        value = default_of(model_fields[name])
        try:
            to_jsonable_python(None if value is PydanticUndefined else value)
        except PydanticSerializationError:
            what = f"the field {name} has the default {value!r:.60}"
            yield f"{place}: {what}, which {user_code.no_value(name, value)}"
    try:
        cls()
    except ValidationError as error:
        for one in error.errors():
            name = str(one["loc"][0]) if one["loc"] else ""
            if name in where and not absent(one):
                yield f"{where[name]}: {wrong_default(name, model_fields[name], one)}"
    except Exception as error:
        if not user_code.frames(error):  # raised by no validator of the user's
            raise
        yield f"{user_code.refusal(error)}; validators get the defaults of fields too"


def absent(error: Mapping[str, Any]) -> bool:
    """Return whether a field has no default, or none without another field that must be given."""
    return len(error["loc"]) == 1 and error["type"] in ("missing", "default_factory_not_called")


def wrong_default(name: str, field: FieldInfo, error: Mapping[str, Any]) -> str:
    """Return the message for a default that its field does not take."""
    value, kind = default_of(field), kind_of(field.annotation)
    value = error["input"] if value is PydanticUndefined else value
    other = f"{kind} | None" if value is None else type(value).__name__
    advice = "write another default"
    of_type = re.search("_type$|_from_|_parsing", error["type"])
    if value == inf:
        advice = f"write `{name}: float | None = None` for no limit"
    elif of_type and kind in SCALARS and other != kind and (value is None or other in SCALARS):
        advice += f", or another type: `{name}: {other} = {value!r}`"
    return (
        f"the field {name} is {kind}, but its default is {value!r:.60}: {reason(error)}; {advice}"
    )


def hook(
    cls: type, name: str, value: Any, base: type, used: set[str], replaced: set[str]
) -> Iterator[str]:
    """Yield what is wrong with one public name of the class.

    used: names that the user's files refer to.
    replaced: names that the user's classes define.
    """
    fn = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    fn = fn.fget if isinstance(fn, property) else fn
    if not isinstance(fn, FunctionType):
        return
    place, default = user_code.line_of(fn), inspect.getattr_static(base, name, None)
    if not hasattr(base, name):
        if name not in used:
            yield f"{place}: {misspelt(cls, name, base)}"
    elif not isinstance(default, FunctionType):
        if isinstance(value, FunctionType):
            yield (
                f"{place}: {name} is a value of {base.__name__}, not a method; put @property above "
                f"it, or write `{name}: ClassVar = ...`"
            )
    elif not isinstance(value, property):
        mine = name in used and replaced.intersection(CALLERS.get(name, ()))
        parameters = list(inspect.signature(default).parameters.values())[1:]
        want = [one.name for one in parameters if one.kind != one.VAR_KEYWORD]
        further = [f"**{one.name}" for one in parameters if one.kind == one.VAR_KEYWORD]
        bound = not isinstance(value, staticmethod)
        if not mine and not takes(fn, want, bound, by_name=bool(further)):
            arguments = ", ".join([*want, *further])
            yield (
                f"{place}: {cls.__name__}.{name} takes {inspect.signature(fn)}, but is called with "
                f"({arguments}); write `def {name}(self, {arguments}):`"
            )


def takes(fn: FunctionType, want: list[str], bound: bool, by_name: bool) -> bool:
    """Return whether a function can be called with these arguments by position.

    It may have other names for them, but not the same names in another order.
    by_name: whether it must take any arguments by name too (`**how`).
    """
    signature = inspect.signature(fn)
    if by_name and not any(p.kind == p.VAR_KEYWORD for p in signature.parameters.values()):
        return False
    try:
        signature.bind(*["self"] * bound, *want)
    except TypeError:
        return False
    have = list(signature.parameters)[bound : bound + len(want)]
    return have == want or set(have) != set(want)


def misspelt(cls: type, name: str, base: type) -> str:
    """Return the message for a method that is not a hook and that nothing calls."""
    members = (pair for c in base.__mro__ if issubclass(c, Method) for pair in vars(c).items())
    hooks = sorted({n for n, v in members if isinstance(v, FunctionType) and n[0] != "_"})
    near = get_close_matches(name, hooks, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return (
        f"{cls.__name__}.{name} is not a hook of {base.__name__}, and nothing calls it{hint}\n"
        f"  name it after a hook ({', '.join(hooks)}), call it, or begin its name with _"
    )


def guard(model: type, cls: type) -> None:
    """Wrap the hooks of a user's class so that their results are checked at each call.

    model: class of the run's algorithm, a subclass of cls.
    """
    for name, check in CHECKS.items():
        owner = next((c for c in cls.__mro__ if name in vars(c)), None)
        fn = vars(owner).get(name) if owner else None
        if owner and is_users(owner) and isinstance(fn, FunctionType):
            setattr(model, name, add_check(fn, check))


def add_check(fn: Callable, check: Callable[..., str]) -> Callable:
    """Return the hook with a check; it raises OwnError if it returns what its caller cannot use."""

    @wraps(fn)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        result = fn(self, *args, **named)
        place = f"{user_code.line_of(fn)}: {type(self).__name__}.{fn.__name__}"
        refuse_result(f"{place} returns", result, check(self, result, *args))
        if fn.__name__ != "predictor" or result is args[1].model:
            return result

        def outputs(x: Any) -> Any:
            z = result(x)
            refuse_result(f"{place} gives a function that returns", z, rows(args[0], x, z))
            return z

        return outputs

    return call


def refuse_result(start: str, result: Any, advice: str) -> None:
    """Raise OwnError if there is advice on the result of a hook."""
    if not advice:
        return
    what = f"a {type(result).__name__}"
    if result is None:
        what = "None (is a `return` missing?)"
    elif isinstance(result, Tensor):
        what = f"a tensor of shape {list(result.shape)}"
    elif isinstance(result, Real | str | tuple | list) and len(repr(result)) < 60:
        what = repr(result)
    raise user_code.OwnError(f"{start} {what}; {advice}")


def rows(fed: Any, x: Any, z: Any) -> str:
    """Check the outputs for inputs x, which evaluation scores."""
    shape = [count(x), fed.classes]
    if isinstance(z, Tensor) and list(z.shape) == shape and z.is_floating_point():
        return ""
    return f"return a row of outputs for each example, [n, C] as client.model(x), here {shape}"


def state(method: Any, result: Any, *args: Any) -> str:
    """Check the result of init, server or round: the server's state."""
    if is_plain(method, "round", "model") and not isinstance(result, Params):
        how = "`Params(...)` of this dict" if isinstance(result, dict) else "Params"
        return f"return the state as {how}, tensors by name, or replace `model` as well"
    if result is None:
        return "return the server's state, Params for one"
    if not is_plain(method, "round", "model", "offer", "receive"):
        return ""
    if args[1:]:  # the result of `server`
        return differs(result, args[1]) if is_plain(method, "averaged") else ""
    if not is_plain(method, "local"):
        return ""
    kinds = sorted({*args[0].architectures})  # each client loads the result of `init`
    models = (args[0].shapes(architecture=kind) for kind in kinds)
    return next(filter(None, (misfit(result, m) for m in models)), "")


def differs(result: Params, before: Params) -> str:
    """Check names and shapes of a new state against the state before."""
    if name := next((n for n in before if n not in result), None):
        return f"it does not hold {name!r} of the state before; return all of its tensors"
    return misfit(result, before, "the state before has")


def misfit(state: Params, wanted: Params, whose: str = "a client's model has") -> str:
    """Check that tensors have names and shapes of wanted ones."""
    if not (other := first_misfit(state, wanted)):
        return ""
    name, shape, wanted_shape = other
    return (
        f"it holds {name!r} of shape {shape}, but {whose} one of shape {wanted_shape} (None: not "
        f"at all); keep names and shapes, with which clients load it"
    )


def upload(method: Any, result: Any, *args: Any) -> str:
    """Check the result of local, which the default `aggregate` averages."""
    if not is_plain(method, "round", "aggregate"):
        return ""
    if result is None and has_return(type(method).local):
        return ""
    parts = result.value if isinstance(result, Upload) else result
    parts = parts if isinstance(parts, dict) else {"": parts}
    if not isinstance(result, Upload) or not all(isinstance(v, Mean) for v in parts.values()):
        return (
            "return what is averaged, as in "
            "`Upload(Mean.of(client.params(self.shared), self.weight(client)))`, or write "
            "`return` where a client sends nothing"
        )
    keep = method.averaged(args[0], args[2])
    wanted = {"": keep} if "" in parts else keep
    if wanted.keys() != parts.keys():
        sent, names = (join_few(list(names), 4) for names in (parts, wanted))
        return f"its parts are {sent}, but those of `averaged` are {names}"
    return next(filter(None, (part(parts[n], wanted[n], method) for n in parts)), "")


def has_return(hook: Callable) -> bool:
    """Return whether a hook has a `return`, or whether nobody can tell."""
    try:
        tree = ast.parse(dedent(inspect.getsource(inspect.unwrap(hook))))
    except (OSError, TypeError, SyntaxError):
        return True
    return any(isinstance(node, ast.Return) for node in ast.walk(tree))


def part(mean: Mean, keep: Mapping[str, Tensor], method: Any) -> str:
    """Check the names and shapes of what a client sends against what the mean keeps."""
    for term in mean.terms:
        if plain := [name for name, value in term.value.items() if not isinstance(value, Tensor)]:
            kind = type(term.value[plain[0]]).__name__
            return f"its {plain[0]!r} is a {kind}; send tensors, as `torch.as_tensor(...)`"
        sent = {name: [*value.shape] for name, value in term.value.items()}
        wanted = {name: [*value.shape] for name, value in keep.items()}
        differ = [name for name in sent if name not in wanted]
        differ += [n for n in wanted if n in sent and sent[n] != wanted[n] and not term.at]
        missing = [name for name in wanted if name not in sent and method.per == "mean"]
        if missing and not differ:
            return (
                f"it does not hold {missing[0]!r} of the server's state; send all of its "
                f"tensors, or declare `per: ClassVar = 'tensor'`: then each is averaged over those "
                f"who send it"
            )
        if differ:
            return (
                f"it holds {differ[0]!r} of shape {sent.get(differ[0])}, but the server's state of "
                f"shape {wanted.get(differ[0])} (None: not at all); send tensors of the names and "
                f"shapes that `init` and `server` return"
            )
    return ""


def members(method: Any, result: Any, fed: Any, *args: Any) -> str:
    """Check the result of cohort: ids of clients."""
    ids = list(result) if isinstance(result, Iterable) else [result]
    if all(isinstance(k, Integral) for k in ids) and ids == sorted({*ids} & {*range(fed.K)}):
        return ""
    return f"return ids of clients, 0 to {fed.K - 1}, each once, in ascending order, as fed.sample"


def returns(test: Callable[[Any], bool], advice: str) -> Callable[..., str]:
    """Return the check that a result passes a test; advice: what the hook has to return."""
    return lambda method, result, *args: "" if test(result) else advice


AMOUNT = returns(
    lambda v: isinstance(v, Real) and 0 <= float(v) < inf, "return a number, 0 or more"
)
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
    "refuses": returns(
        lambda v: isinstance(v, dict) and all(isinstance(s, str) for kv in v.items() for s in kv),
        'return reasons by field, and under "job" why the method cannot run it, as in '
        '`super().refuses(job) | {"job": "needs ...; set ..."}`',
    ),
}
