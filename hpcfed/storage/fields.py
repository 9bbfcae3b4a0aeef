"""Nested tables, such as a job's, by the dotted names of their fields: data.alpha."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Fields = dict[str, Any]


def flat(tables: dict[str, Any]) -> Fields:
    """Return all values by dotted name, however deep the tables are nested."""
    values: Fields = {}
    left = [("", iter(tables.items()))]
    while left:
        above, items = left[-1]
        for name, value in items:
            if isinstance(value, dict) and value:
                left.append((f"{above}{name}.", iter(value.items())))
                break
            values[f"{above}{name}"] = value
        else:
            left.pop()
    return values


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as nested tables, of which `flat` is the inverse."""
    tables: dict[str, Any] = {}
    for name, value in fields.items():
        *above, last = name.split(".")
        table = tables
        for part in above:
            table = table.setdefault(part, {})
        table[last] = value
    return tables


def at(tables: Any, name: str) -> Any:
    """Return the value of this name, None if there is none."""
    for part in name.split("."):
        tables = tables.get(part) if isinstance(tables, dict) else None
    return tables


def covers(names: Iterable[str], field: str) -> bool:
    """Return whether a field is one of these names, or below one: run covers run.threads."""
    return any(field == name or field.startswith(f"{name}.") for name in names)
