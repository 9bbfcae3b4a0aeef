"""Layers of a job's values, of which upper ones hide lower ones, and where each value stands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcfed.core.errors import ConfigError

PREFIX = "HPCFED_"
COMMAND_LINE, ENVIRONMENT = "command line", "environment"
STORED = "the job stored in "  # with the run, of the layer of a run that is continued
DEFAULT = "the embedded job"  # of a job without a file
CALL = "hpcfed.run"  # a call in Python


class Layer(NamedTuple):
    """One source of values.

    name: a file, a preset, the environment, the command line, or a call in Python.
    values: nested tables.
    places: of flags and variables, how the field at a dotted name is written.
    """

    name: str
    values: dict[str, Any]
    places: Mapping[str, str] = {}

    def place(self, path: Sequence[str]) -> str:
        """Return how messages name the value at this path: `jobs/a.toml: data.alpha`.

        It is "" if the layer has none, or only flags and variables of fields below it.
        """
        if not has(self.values, path):
            return ""
        if not self.places:
            return f"{self.name}: {'.'.join(path)}"
        above = (".".join(path[:n]) for n in range(len(path), 0, -1))  # a variable may hold a table
        return next((f"{self.name}: {self.places[a]}" for a in above if a in self.places), "")


def merge(*tables: dict[str, Any]) -> dict[str, Any]:
    """Return nested tables merged into one; later ones win."""
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merge(result[key], value) if both else value
    return result


def has(values: Any, path: Sequence[str]) -> bool:
    """Return whether nested dicts hold a value at this path."""
    for part in path:
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def origin(path: Sequence[str], layers: Sequence[Layer]) -> str:
    """Return where the value at this path stands: the first of the layers that has it.

    Without one it is the field's name alone.
    """
    return next(filter(None, (layer.place(path) for layer in layers)), ".".join(path))


def variable(name: str) -> str:
    """Return the environment variable of a field or table: HPCFED_DATA__ALPHA."""
    return PREFIX + name.replace(".", "__").upper()


def environment(environ: Mapping[str, str]) -> Layer:
    """Return the texts of HPCFED_ variables, by field; a table is written as JSON.

    Their names are checked by `load.check_environment`. Raises ConfigError for what is not JSON.
    """
    values: dict[str, Any] = {}
    places = {}
    variables = {n: v for n, v in environ.items() if n.startswith(PREFIX)}
    for name, text in sorted(variables.items()):  # a table before its fields
        path = name.removeprefix(PREFIX).lower().split("__")
        places[".".join(path)] = name
        table: Any = values
        for part in path[:-1]:
            table = table.setdefault(part, {}) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table[path[-1]] = json_table(name, text) if len(path) == 1 else text
    return Layer(ENVIRONMENT, values, places)


def json_table(variable: str, text: str) -> Any:
    """Return the table that a variable holds as JSON; other texts as they are."""
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{ENVIRONMENT}: {variable}: not JSON: {error}") from error
