"""Conversion of a Python call's arguments to a job: tables, classes, functions, arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from hpcfed.config.layers import CALL, Layer, merge
from hpcfed.config.load import Given, refuse_plain_tables
from hpcfed.config.methods import ALGORITHMS, name_of, own_name
from hpcfed.core import user_code
from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import join_few
from hpcfed.data import datasets
from hpcfed.launch.given_data import ARRAYS, GivenData, convert
from hpcfed.storage.fields import flat

NAMED = (  # classes and functions
    *("algorithm.name", "models.mix", "models.proxy", "models.server"),
    "evaluate.metrics",
)
SHORT = {"model": "models.mix"}  # of a call


class Call:
    """The arguments of `hpcfed.run`.

    files: job files.
    arguments: tables of plain values, with higher and with lower priority than the environment.
    lent: classes and functions that no other process could import, by their names in the job.
    data: arrays and tables that are not written yet; see `store`.
    """

    def __init__(self, job: Any, fields: Mapping[str, Any]):
        self.lent: dict[str, Any] = {}
        self.data: list[GivenData] = []
        self.files, table = job_of(job)
        self.arguments = Given(self.plain(nested(table)), self.plain(nested(fields)))

    def store(self, job: Any) -> list[Path]:
        """Check the data of the call against a checked job, and write them where it reads them.

        Returns the files that were not there before. Raises DataError for data that cannot be read
        as the job says.
        """
        for data in self.data:
            data.check(datasets.reading(job, data.file))
        root = Path(job.data.root)
        return [root / data.file for data in self.data if data.write(root)]

    def plain(self, table: dict[str, Any]) -> dict[str, Any]:
        """Return the table with names in place of classes, functions and arrays."""
        tables = {name: plain(value) for name, value in table.items()}
        for path in NAMED:
            part, name = path.split(".")
            if isinstance(tables.get(part), dict) and name in tables[part]:
                value = tables[part][name]
                many = isinstance(value, list | tuple)
                names = [self.name(path, v) for v in (value if many else [value])]
                mix = many or name == "mix"
                tables[part] = tables[part] | {name: names if mix else names[0]}
        if "on_round" in tables:
            tables["on_round"] = self.name("on_round", tables["on_round"])
        data = tables.get("data")
        if isinstance(data, dict) and "name" in data and not isinstance(data["name"], str | Path):
            converted = convert(data["name"])
            self.data.append(converted)
            tables["data"] = data | {"name": converted.file}
            tables = merge(dict(converted.fields), tables)
        refuse_functions(tables)
        return tables

    def name(self, field: str, thing: Any) -> Any:
        """Return a job's name for a class or function.

        Other values are returned as they are, for the job's own check. Raises ConfigError for
        objects that are not callable.
        """
        if isinstance(thing, str) or thing is None:
            return thing
        if not callable(thing):
            raise ConfigError(
                f"hpcfed.run: {field} = {thing!r:.60}: give a name, a class or a function"
            )
        if isinstance(thing, type) and (registry_name := name_of(thing)) in ALGORITHMS:
            return registry_name
        name = own_name(thing)
        module, _, short = name.partition(":")
        if module != "__main__" and importable(thing, module, short):
            return name
        n = 1
        while self.lent.get(name, thing) is not thing:  # two of one name
            n += 1
            name = f"{module}:{short}_{n}"
        self.lent[name] = thing
        return name


def job_of(job: Any) -> tuple[list[Path], dict[str, Any]]:
    """Return the job files and the table that a call begins with."""
    if job is None:
        return [], {}
    if isinstance(job, Mapping):
        return [], dict(job)
    files = [job] if isinstance(job, str | Path) else job
    if isinstance(files, list | tuple) and all(isinstance(file, str | Path) for file in files):
        for wrong in (file for file in files if not str(file).endswith(".toml")):
            raise ConfigError(
                f"hpcfed.run: {str(wrong)!r} is not a job file (.toml); other fields are given by "
                "name, as in hpcfed.run(algorithm='fedavg')"
            )
        return [Path(file) for file in files], {}
    raise ConfigError(
        f"hpcfed.run: a job is the path of a job file, a list of such paths, or a dict, not a "
        f"{type(job).__name__}"
    )


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields as nested tables: `data.alpha` as alpha of the table data.

    `model` is renamed to its name in a job. Raises ConfigError for a value in place of a table.
    """
    job: dict[str, Any] = {}
    for name, value in fields.items():
        if name in SHORT and not isinstance(value, list | tuple):
            value = [value]
        *tables, last = SHORT.get(name, name).split(".")
        item: Any = dict(value) if isinstance(value, Mapping) else value
        for table in reversed((*tables, last)):
            item = {table: item}
        for part in {"algorithm", "data"} & item.keys():
            item[part] = as_table(item[part])
        refuse_plain_tables([Layer(CALL, plain(item))])  # before other fields hide them
        job = merge(job, item)
    return job


def as_table(value: Any) -> dict[str, Any]:
    """Return the table [algorithm] or [data] for a value that stands for it.

    The value may be a name, a class, a method's object with its parameters, or arrays.
    """
    if isinstance(value, dict) and not is_data(value):
        return value
    if isinstance(value, BaseModel):
        return {**value.model_dump(exclude_unset=True), "name": type(value)}
    return {"name": value}


def is_data(value: Mapping[str, Any]) -> bool:
    """Return whether a table holds arrays of a data set; `vocabulary` is also a field of a job."""
    return bool((set(ARRAYS) - {"vocabulary"}) & value.keys())


def plain(value: Any) -> Any:
    """Return a value in Python's own types instead of numpy's."""
    if isinstance(value, Mapping):
        return {str(name): plain(v) for name, v in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def refuse_functions(tables: dict[str, Any]) -> None:
    """Raise ConfigError for a value of a method's field that no job can hold."""
    for path, value in flat({"algorithm": tables.get("algorithm")}).items():
        try:
            to_jsonable_python(value)
        except PydanticSerializationError as error:
            name = path.rpartition(".")[2]
            raise ConfigError(
                f"hpcfed.run: {path} = {value!r:.60}, which {user_code.no_value(name, value)}"
            ) from error


def importable(thing: Any, module: str, name: str) -> bool:
    """Return whether another process would import the same object under this name."""
    loaded_module = sys.modules.get(module)
    return (
        loaded_module is not None
        and getattr(loaded_module, "__file__", None) is not None
        and getattr(loaded_module, name, None) is thing
    )


def check_importable(lent: Iterable[str], ranks: int) -> None:
    """Raise ConfigError if other ranks need objects that only this process has."""
    if names := list(lent):
        raise ConfigError(
            f"hpcfed.run: ranks = {ranks}, but {join_few(names, 4)} is defined in this script or "
            "notebook, which the other processes cannot import; move it into a file of its own, "
            "say mine.py, and import it from there, or remove ranks"
        )
