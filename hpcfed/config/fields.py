"""The fields of a job by dotted name, their types in words, and texts as values of a field."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hpcfed.config.limits import kinds_of

SWITCH = {  # words that are a switch's value, as pydantic takes them
    *("true", "t", "yes", "y", "on", "1"),
    *("false", "f", "no", "n", "off", "0"),
}


def is_part(annotation: object) -> TypeGuard[type[BaseModel]]:
    """Return whether a field is a table of the job."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


@cache
def field_names(model: type[BaseModel], prefix: str = "") -> tuple[str, ...]:
    """Return the dotted names of all fields that are not tables."""
    names: list[str] = []
    for name, info in model.model_fields.items():
        if is_part(info.annotation):
            names += field_names(info.annotation, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return tuple(names)


@cache
def table_names(model: type[BaseModel], prefix: str = "") -> tuple[str, ...]:
    """Return the dotted names of all tables, each before those inside it."""
    names: list[str] = []
    for name, info in model.model_fields.items():
        if is_part(info.annotation):
            names += [prefix + name, *table_names(info.annotation, f"{prefix}{name}.")]
    return tuple(names)


def section(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel] | None:
    """Return the table of the job that a path names; None if there is none."""
    current: Any = model
    for name in path:
        field = getattr(current, "model_fields", {}).get(name)
        current = field.annotation if field else None
    return current if is_part(current) else None


def annotation_of(model: type[BaseModel], path: Sequence[str]) -> Any:
    """Return the type of the field at this path; None if there is no such field."""
    table = section(model, path[:-1])
    field = table.model_fields.get(path[-1]) if table else None
    return field.annotation if field else None


def default_of(field: FieldInfo) -> Any:
    """Return a field's own default; PydanticUndefined if it has none, or if other fields decide."""
    if getattr(field, "default_factory_takes_validated_data", False):
        return PydanticUndefined
    return field.get_default(call_default_factory=True)


def is_switch(annotation: Any) -> bool:
    """Return whether a field is on or off."""
    return bool in kinds_of(annotation)


def is_list(annotation: Any) -> bool:
    """Return whether a field has several values."""
    return any(get_origin(kind) in (tuple, list) for kind in kinds_of(annotation))


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


def choices_of(annotation: Any) -> tuple[str, ...]:
    """Return the words that a field can have: those of its Literal, true and false of a switch."""
    words = [
        word
        for kind in kinds_of(annotation)
        if get_origin(kind) is Literal
        for word in get_args(kind)
    ]
    return tuple(map(str, words)) or (("true", "false") if is_switch(annotation) else ())


def read_text(text: str, annotation: Any) -> Any:
    """Return the value of a flag or variable for a field of this type, to be checked by it.

    `none` is None, `mlp,cnn` and `["mlp", "cnn"]` are lists.
    """
    if NoneType in kinds_of(annotation) and text.lower() == "none":
        return None
    return read_list(text) if is_list(annotation) else text


def read_list(text: str) -> list[Any]:
    """Return several values, which are written as JSON or separated by commas."""
    if text.startswith("[") and text.endswith("]"):
        try:
            return list(json.loads(text))
        except (ValueError, RecursionError):
            text = text[1:-1]
    try:
        return next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:
        return text.split(",")


def format_flag_value(value: Any) -> str:
    """Return a value as flags take it: `true`, `none`, `mlp,cnn`."""
    if isinstance(value, list):
        return ",".join(map(format_flag_value, value)) or "none"
    text = str(value) or "''"
    return text.lower() if value is None or isinstance(value, bool) else text
