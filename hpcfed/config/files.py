"""Job files and presets as nested tables, and how they override each other."""

from __future__ import annotations

import os
import tomllib
from itertools import islice
from pathlib import Path
from typing import Any

from hpcfed.config.layers import Layer, merge
from hpcfed.config.methods import with_registered_name
from hpcfed.core.errors import ConfigError
from hpcfed.core.paths import regular
from hpcfed.storage.fields import at

PRESETS = Path(__file__).parent / "presets"
EMBEDDED = PRESETS / "default.toml"
MOST = 100  # largest number of files that one job file may extend, directly or through others


def read(*paths: Path) -> list[Layer]:
    """Return the layers of job files, each after the files that it `extends`; later ones win.

    Paths in `extends` are relative to the file. Each file overrides those before it in the same way
    as the files that it extends: if it names another algorithm, the fields of the earlier algorithm
    do not count.
    """
    layers: list[Layer] = []
    for path in paths:
        file_layers = under(path, {})
        layers = [
            *drop_other_method(layers, merge(*(layer.values for layer in file_layers))),
            *file_layers,
        ]
    return layers


def under(path: Path, above: dict[str, Path]) -> list[Layer]:
    """Return the layers of one file, as `read` does.

    above: the files that extend it, by their real paths.
    """
    real = os.path.realpath(path) if "\0" not in str(path) else str(path)
    if real in above:
        raise ConfigError(f"{path}: extends itself through {' -> '.join(map(str, above.values()))}")
    if len(above) > MOST:
        raise too_many(next(iter(above.values())))
    by = next(reversed(above.values()), None)
    values = with_registered_name(parse(path, f" (which {by} extends)" if by else ""))
    bases = values.pop("extends", [])
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"{path}: extends must be a list of file names, got {bases!r}")
    here = {**above, real: path}
    extended = (layer for base in bases for layer in under(path.parent / base, here))
    # files that extend others several times over would be too many to read
    layers = list(islice(extended, MOST + 1))
    if len(layers) > MOST:
        raise too_many(path)
    return [*drop_other_method(layers, values), Layer(str(path), values)]


def too_many(path: Path) -> ConfigError:
    return ConfigError(
        f"{path}: extends more than {MOST} files, counting those that they extend; name fewer"
    )


def parse(path: Path, by: str) -> dict[str, Any]:
    """Return the tables of one TOML file; by: who names it, for the message."""
    try:
        return tomllib.loads(regular(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot read the job file{by}: {error.strerror}; check the path"
        ) from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # not UTF-8, not TOML, a number of 5,000 digits; nested too deep
        raise ConfigError(f"{path}: not a TOML file: {error}") from error


def drop_other_method(layers: list[Layer], values: dict[str, Any]) -> list[Layer]:
    """Return the layers under these values, without [algorithm] if that is another algorithm's.

    If no layer names an algorithm, their fields are those of the algorithm that the values name.
    """
    below = at(merge(*(layer.values for layer in layers)), "algorithm.name")
    # what is no text, such as a table, is no name: it is refused later
    if not isinstance(below, str) or at(values, "algorithm.name") in (None, below):
        return layers
    return [layer._replace(values=without_algorithm(layer.values)) for layer in layers]


def without_algorithm(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without [algorithm]; a value in place of the table is refused later."""
    return {k: v for k, v in values.items() if k != "algorithm" or not isinstance(v, dict)}


def read_preset(name: str, algorithm: str, data: str = "") -> dict[str, Any]:
    """Return a preset's values for this algorithm on this data set.

    For a wrong name they are empty; the job's own check reports it.

    If a preset has [jobs.NAME], that is the complete preset of that algorithm. The other algorithms
    have the rest, over it [datasets.NAME], and [algorithms.NAME] as their fields.
    """
    path = next((path for path in PRESETS.glob("*.toml") if path.stem == name), None)
    if path is None:
        return {}
    values = tomllib.loads(path.read_text())
    if algorithm in (jobs := values.pop("jobs", {})):
        return jobs[algorithm]
    methods, datasets = values.pop("algorithms", {}), values.pop("datasets", {})
    fields = {"algorithm": methods[algorithm]} if algorithm in methods else {}
    return merge(values, datasets.get(data, {}), fields)
