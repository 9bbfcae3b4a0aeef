"""Messages for pydantic's errors: what is wrong, where, which value, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from hpcfed.config.fields import annotation_of, field_names, kind_of, section
from hpcfed.config.layers import Layer, origin
from hpcfed.core.errors import nearest


def no_field(name: str, fields: type[BaseModel] | Iterable[str]) -> str:
    """Return the message for a field that does not exist: the nearest fields, and all of them.

    fields: the class of a table, or dotted names of all fields.
    """
    if isinstance(fields, type):
        takes = ", ".join(f"{n} ({kind_of(f.annotation)})" for n, f in fields.model_fields.items())
        names, takes = list(fields.model_fields), f"\n  {fields.__name__} takes: {takes}"
        near, otherwise = same_last_part(name, field_names(fields)) or nearest(name, names), ""
    else:
        names, takes = list(fields), "\n  all fields: --help all"
        table, _, last = name.rpartition(".")
        of_method = f"; a field of the method is written algorithm.{last}"
        otherwise = "" if table == "algorithm" else of_method
        near = same_last_part(name, names) or nearest(name, names)
        if table and not nearest(table, {other.rpartition(".")[0] for other in names}):
            near = []  # the table may be the name of a method
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else otherwise
    return f"no field {name!r}{hint}{takes}"


def same_last_part(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three of these dotted names with the last part of this one: local.lr for lr."""
    last = name.rpartition(".")[2]
    return [other for other in names if other.rpartition(".")[2] == last][:3]


def explain(error: ValidationError, model: type[BaseModel], layers: Sequence[Layer]) -> str:
    """Return all mistakes of a job, a line or two each, with the source of each value.

    Of two layers the first wins.
    """
    lines = (one(e, model, layers) for e in error.errors(include_url=False))
    return "\n".join(dict.fromkeys(lines))


def one(e: Any, model: type[BaseModel], layers: Sequence[Layer]) -> str:
    """Return one mistake: `jobs/a.toml: data.alpha: input should be greater than 0, got -1`."""
    path = [part for part in e["loc"] if isinstance(part, str)]
    while len(path) > 1 and section(model, path[:-1]) is None:  # in a value, or a kind of value
        path.pop()
    place = origin(path, layers)
    if e["type"] == "extra_forbidden" and (table := section(model, path[:-1])):
        return f"{place}: {no_field(path[-1], table)}"
    if e["type"] == "value_error":  # a check of hpcfed's own, whose message is complete
        return f"{place}: {reason(e)}"
    if e["type"] == "missing" and isinstance(e["loc"][-1], int):
        return f"{place}: takes {count(model, path)} values, got {len(e['input'])}"
    if e["type"] == "missing":
        return f"{place}: must be given; the method has no default for it"
    return f"{place}: {reason(e)}, got {e['input']!r}"


def reason(e: Any) -> str:
    """Return why pydantic refuses a value: `input should be greater than 0`."""
    if e["type"] == "value_error":
        return str(e["ctx"]["error"])
    return f"{e['msg'][:1].lower()}{e['msg'][1:]}"


def count(model: type[BaseModel], path: Sequence[str]) -> int:
    """Return how many values a field takes."""
    return len(annotation_of(model, path).__args__)
