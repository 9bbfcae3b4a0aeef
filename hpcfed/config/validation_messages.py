"""Messages for pydantic's errors: what is wrong, where, which value, and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from hpcfed.core.errors import nearest

PREFIX = "HPCFED_"
CALL = "hpcfed.run"  # name of the layer of a call in Python, which overrides all others
Layer = tuple[str, dict[str, Any]]  # the source of values, for example a file, and the values


def no_field(name: str, known: type[BaseModel] | Iterable[str]) -> str:
    """Return the message for a field that does not exist: the nearest fields, and all of them."""
    if isinstance(known, type):
        takes = ", ".join(f"{n} ({kind_of(f.annotation)})" for n, f in known.model_fields.items())
        names, takes = list(known.model_fields), f"\n  {known.__name__} takes: {takes}"
    else:
        names, takes = list(known), "\n  all fields: --help all"
    near = nearest(name, names)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"no field {name!r}{hint}{takes}"


def stray(word: str) -> str:
    """Return the message for a word of the command line that belongs to no field."""
    if word.endswith(".toml"):
        return f"command line: {word}: job files stand before all flags; of several the later win"
    return f"command line: {word!r} is neither a job file (.toml) nor the value of a --field"


def explain(
    error: Exception, model: type[BaseModel], layers: Sequence[Layer], flags: Sequence[str]
) -> str:
    """Return all mistakes of a job, a line or two each, with the source of each value.

    Of two layers the first wins.
    """
    if not isinstance(error, ValidationError):
        return f"environment or command line: {error}"
    return "\n".join(one(e, model, layers, flags) for e in error.errors(include_url=False))


def one(e: Any, model: type[BaseModel], layers: Sequence[Layer], flags: Sequence[str]) -> str:
    """Return one mistake: `jobs/a.toml: data.alpha: input should be greater than 0, got -1`."""
    path = [
        part
        for part in e["loc"]
        if isinstance(part, str) and not part.startswith(("tuple", "function"))
    ]
    place = origin(path, layers, flags)
    if e["type"] == "extra_forbidden" and (table := section(model, path[:-1])):
        return f"{place}: {no_field(path[-1], table)}"
    if e["type"] == "value_error":  # a check of hpcfed's own, whose message is complete
        return f"{place}: {e['ctx']['error']}"
    if e["type"] == "missing":
        return f"{place}: must be given; its method has no default for it"
    return f"{place}: {e['msg'][:1].lower()}{e['msg'][1:]}, got {e['input']!r}"


def section(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel] | None:
    """Return the part of the job that a path names."""
    current: Any = model
    for name in path:
        field = getattr(current, "model_fields", {}).get(name)
        current = field.annotation if field else None
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def origin(path: Sequence[str], layers: Sequence[Layer], flags: Sequence[str]) -> str:
    """Return where the value at this path was given, and its name there.

    The source is a flag, a variable of the environment or a file.
    """
    if layers and layers[0][0] == CALL and has(layers[0][1], path):
        return f"{CALL}: {'.'.join(path)}"
    flag = "--" + ".".join(path)
    if any(word.split("=")[0] in (flag, flag.replace("--", "--no-", 1)) for word in flags):
        return f"command line: {flag if '.' in flag else flag.replace('_', '-')}"
    for n in range(len(path), 0, -1):  # a variable may hold a whole part, as JSON
        if (variable := PREFIX + "__".join(path[:n]).upper()) in os.environ:
            return f"environment: {variable}"
    return next(
        (f"{name}: {'.'.join(path)}" for name, values in layers if has(values, path)),
        ".".join(path),
    )


def has(values: Any, path: Sequence[str]) -> bool:
    """Return whether nested dicts hold a value at this path."""
    for part in path:
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def kind_of(annotation: Any) -> str:
    """Return a field's type in words: `float`, `'all' or 'head'`, `int or none`."""
    if annotation is NoneType:
        return "none"
    if get_origin(annotation) is Annotated:
        return kind_of(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, get_args(annotation)))
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(map(kind_of, get_args(annotation)))
    if get_origin(annotation) is tuple:
        return "tuple of " + kind_of(get_args(annotation)[0])
    return str(getattr(annotation, "__name__", annotation))
