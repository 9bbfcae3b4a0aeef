"""Nested tables, such as a job's, by the dotted names of their fields: data.alpha."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Fields = dict[str, Any]


def flat(tables: dict[str, Any]) -> Fields:
    """All values by name."""
    return dict(_flat(tables, ""))


def _flat(table: dict[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def at(tables: Any, name: str) -> Any:
    """The value of this name; None without one."""
    for part in name.split("."):
        tables = tables.get(part) if isinstance(tables, dict) else None
    return tables


def covers(names: Iterable[str], field: str) -> bool:
    """Whether a field is one of these names, or below one: run covers run.threads."""
    return any(field == name or field.startswith(f"{name}.") for name in names)
