"""Job files and presets as nested tables, and how they lie over one another."""

from __future__ import annotations

import os
import tomllib
from itertools import islice
from pathlib import Path
from typing import Any

from hpcfed.config.messages import Layer
from hpcfed.errors import ConfigError
from hpcfed.paths import regular

PRESETS = Path(__file__).parent.parent / "presets"
EMBEDDED = PRESETS / "default.toml"
MOST = 100  # files that one job file may extend, those that they extend included


def read(path: Path, seen: tuple[Path, ...] = ()) -> list[Layer]:
    """A job file after the files that it `extends` (paths relative to itself): later ones win."""
    if any(same(path, other) for other in seen):
        raise ConfigError(f"{path}: extends itself through {' -> '.join(map(str, seen))}")
    values = parse(path, f" (which {seen[-1]} extends)" if seen else "")
    bases = values.pop("extends", [])
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"{path}: extends must be a list of file names, got {bases!r}")
    layers = (layer for base in bases for layer in read(path.parent / base, (*seen, path)))
    under = list(
        islice(layers, MOST + 1)
    )  # files that extend files twice over would be too many to read
    if len(under) > MOST:
        raise ConfigError(
            f"{path}: extends more than {MOST} files, counting those that they extend; name fewer"
        )
    return [*replaced(under, values), (str(path), values)]


def same(path: Path, other: Path) -> bool:
    """Whether both are one file, by whatever names."""
    return "\0" not in str(path) and os.path.realpath(path) == os.path.realpath(other)


def parse(path: Path, by: str) -> dict[str, Any]:
    """The tables of one TOML file; by: who names it, for the message."""
    try:
        return tomllib.loads(regular(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot read the job file{by}: {error.strerror}; check the path"
        ) from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # no UTF-8, no TOML, a number of 5,000 digits; nested without end
        raise ConfigError(f"{path}: not a TOML file: {error}") from error


def replaced(under: list[Layer], values: dict[str, Any]) -> list[Layer]:
    """The layers under a file: where it names another algorithm than they do, without that one's
    fields.
    """
    own, theirs = (
        table.get("algorithm") for table in (values, merge(*(layer for _, layer in under)))
    )
    if not (isinstance(own, dict) and isinstance(theirs, dict)) or own.get("name") in (
        None,
        theirs.get("name"),
    ):
        return under
    return [(name, {k: v for k, v in layer.items() if k != "algorithm"}) for name, layer in under]


def merge(*tables: dict[str, Any]) -> dict[str, Any]:
    """Nested tables laid over one another; later ones win."""
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merge(result[key], value) if both else value
    return result


def read_preset(name: str, algorithm: str, data: str = "") -> dict[str, Any]:
    """A preset's values for this algorithm on this data set; a wrong name is left to the job's own
    check.

    [jobs.NAME] is the whole preset of that algorithm; the others have the rest, over it
    [datasets.NAME], and [algorithms.NAME] as their fields.
    """
    path = next((path for path in PRESETS.glob("*.toml") if path.stem == name), None)
    if path is None:
        return {}
    values = tomllib.loads(path.read_text())
    if algorithm in (whole := values.pop("jobs", {})):
        return whole[algorithm]
    own, theirs = values.pop("algorithms", {}), values.pop("datasets", {})
    fields = {"algorithm": own[algorithm]} if algorithm in own else {}
    return merge(values, theirs.get(data, {}), fields)
