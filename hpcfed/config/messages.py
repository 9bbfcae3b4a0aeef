"""Pydantic's errors in our words: what, where, which value, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError


def no_field(name: str, known: type[BaseModel] | Iterable[str]) -> str:
    """The sentence for a field that does not exist: the nearest ones, and all that there are."""
    if isinstance(known, type):
        takes = ", ".join(f"{n} ({type_name(f.annotation)})" for n, f in known.model_fields.items())
        names, takes = list(known.model_fields), f"\n  {known.__name__} takes: {takes}"
    else:
        names, takes = list(known), "\n  all fields: --help"
    near = get_close_matches(name, names, n=2)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"no field {name!r}{hint}{takes}"


def explain(
    error: Exception, model: type[BaseModel], files: Mapping[str, dict[str, Any]], flags: Sequence[str]
) -> str:
    """All mistakes of a job, a line or two each, each with the place it came from."""
    if not isinstance(error, ValidationError):
        return str(error)
    return "\n".join(one(e, model, files, flags) for e in error.errors(include_url=False))


def one(e: Any, model: type[BaseModel], files: Mapping[str, dict[str, Any]], flags: Sequence[str]) -> str:
    path = [part for part in e["loc"] if isinstance(part, str) and not part.startswith(("tuple", "function"))]
    place = f"{origin(path, files, flags)}.{'.'.join(path)}"
    if e["type"] == "extra_forbidden":
        table = section(model, path[:-1])
        place = ".".join([origin(path, files, flags), *path[:-1]])
        return f"{place}: {no_field(path[-1], table) if table else e['msg']}"
    return f"{place}: {e['msg'][:1].lower()}{e['msg'][1:]}, got {e['input']!r}"


def section(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel] | None:
    """The part of the job that a path names."""
    current: Any = model
    for name in path:
        field = getattr(current, "model_fields", {}).get(name)
        current = field.annotation if field else None
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def origin(path: Sequence[str], files: Mapping[str, dict[str, Any]], flags: Sequence[str]) -> str:
    """Where the value at this path was given: command line, a file, or the environment."""
    if any(word.split("=")[0] == "--" + ".".join(path) for word in flags):
        return "command line"
    for name, values in files.items():
        value: Any = values
        for part in path:
            value = value.get(part) if isinstance(value, dict) and part in value else None
        if value is not None:
            return name
    return "environment"


def type_name(annotation: Any) -> str:
    """A type as a user reads it: `int`, `a or b`, `tuple[str, ...]`."""
    text = str(getattr(annotation, "__name__", annotation) if isinstance(annotation, type) else annotation)
    return text.replace("typing.", "").replace("pathlib._local.", "").replace("pathlib.", "")
