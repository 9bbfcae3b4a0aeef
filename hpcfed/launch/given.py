"""Conversion of a Python call's arguments to a job: tables, classes, functions, arrays."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from hpcfed.config.files import merge, read
from hpcfed.config.load import Given, peek
from hpcfed.config.methods import ALGORITHMS
from hpcfed.config.sections import Data
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.core.wording import join_few
from hpcfed.storage.atomic import convert_write_errors, instead

# Arrays of a data set, by the names that an .npz file has for them. What other kinds of data a file
# may hold, a call may give: their names belong here.
ARRAYS = (
    "x_train",
    "y_train",
    "x_test",
    "y_test",
    "users_train",
    "users_test",
    "text_train",
    "text_test",
    "vocabulary",
)
NAMED = ("algorithm.name", "models.mix", "models.proxy", "models.server")  # classes and functions
SHORT = {"model": "models.mix"}  # of a call
DIGITS = 12  # of the name of arrays


class Call:
    """The arguments of `hpcfed.run`.

    files: job files.
    given: tables of plain values, with higher and with lower priority than the environment.
    lent: classes and functions that no other process could import, by their names in the job.
    """

    def __init__(self, job: Any, fields: Mapping[str, Any]):
        self.lent: dict[str, Any] = {}
        self.files, table = job_of(job)
        over, under = nested(fields), nested(table)
        root = self.root(over, under)
        self.given = Given(self.plain(under, root), self.plain(over, root))

    def root(self, *tables: dict[str, Any]) -> Path:
        """Return the folder of data, where arrays are written."""
        parts = [table["data"] for table in tables if isinstance(table.get("data"), Mapping)]
        call = [{"data": {"root": str(part["root"])}} for part in parts if "root" in part]
        files = merge(*(values for _, values in read(*self.files)))
        return Path(
            (call[0]["data"]["root"] if call else None)
            or peek("data.root", [], os.environ, files)
            or Data().root
        )

    def plain(self, table: dict[str, Any], root: Path) -> dict[str, Any]:
        """Return the table with names in place of classes, functions and arrays."""
        found = {name: plain(value) for name, value in table.items()}
        for path in NAMED:
            part, name = path.split(".")
            if isinstance(found.get(part), dict) and name in found[part]:
                value = found[part][name]
                many = isinstance(value, list | tuple)
                names = [self.name(path, v) for v in (value if many else [value])]
                mix = many or name == "mix"
                found[part] = found[part] | {name: names if mix else names[0]}
        data = found.get("data")
        if isinstance(data, dict) and "name" in data and not isinstance(data["name"], str | Path):
            found["data"] = data | {"name": put(data["name"], root)}
        return found

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
        if isinstance(thing, type) and (known := registered(thing)):
            return known
        found = getattr(thing, "func", thing)  # of a functools.partial, its function
        module = getattr(found, "__module__", None) or ""
        if not all(part.isidentifier() for part in module.split(".")):  # as runpy's <run_path>
            module = "__main__"
        last = getattr(found, "__qualname__", type(found).__name__).rpartition(".")[2]
        own = last if last.isidentifier() else "given"
        name = f"{module}:{own}"
        if module != "__main__" and importable(thing, module, own):
            return name
        n = 1
        while self.lent.get(name, thing) is not thing:  # two of one name
            n += 1
            name = f"{module}:{own}_{n}"
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
                f"hpcfed.run: {str(wrong)!r} is no job file (.toml); other fields are given by "
                "name, as in hpcfed.run(algorithm='fedavg')"
            )
        return [Path(file) for file in files], {}
    raise ConfigError(
        f"hpcfed.run: a job is the path of a job file, a list of such paths, or a dict, not a "
        f"{type(job).__name__}"
    )


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields as nested tables: `data.alpha` as alpha of the table data.

    `model` is renamed to its name in a job.
    """
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if name in SHORT and not isinstance(value, list | tuple):
            value = [value]
        *tables, last = SHORT.get(name, name).split(".")
        item: Any = dict(value) if isinstance(value, Mapping) else value
        for table in reversed((*tables, last)):
            item = {table: item}
        for part in {"algorithm", "data"} & item.keys():
            item[part] = as_table(item[part])
        found = merge(found, item)
    return found


def as_table(value: Any) -> dict[str, Any]:
    """Return the table [algorithm] or [data] for a value that stands for it.

    The value may be a name, a class, a method's object with its parameters, or arrays.
    """
    if isinstance(value, dict) and not set(value) & set(ARRAYS):
        return value
    if isinstance(value, BaseModel):
        return {**value.model_dump(mode="json", exclude_unset=True), "name": type(value)}
    return {"name": value}


def plain(value: Any) -> Any:
    """Return a value in Python's own types instead of numpy's."""
    if isinstance(value, Mapping):
        return {str(name): plain(v) for name, v in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def registered(cls: type) -> str | None:
    """Return the name of a method that comes with hpcfed, by its class; None for others."""
    target = f"{cls.__module__}:{cls.__qualname__}"
    return next((name for name, entry in ALGORITHMS.items() if entry.target == target), None)


def importable(thing: Any, module: str, name: str) -> bool:
    """Return whether another process would import the same object under this name."""
    found = sys.modules.get(module)
    return (
        found is not None
        and getattr(found, "__file__", None) is not None
        and getattr(found, name, None) is thing
    )


def put(data: Any, root: Path) -> str:
    """Write arrays into the folder of data, once, and return the file's name.

    The name is determined by the contents.
    data: (x, y) or (x, y, x_test, y_test); or a dict, or an object with attributes, of the names in
    ARRAYS. `hpcfed.data.files.read` describes what they may hold.
    """
    arrays = {name: as_array(name, value) for name, value in parts_of(data).items()}
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        total.update(array.data if array.size and array.dtype.kind in "biuf" else array.tobytes())
    file = f"arrays-{total.hexdigest()[:DIGITS]}.npz"
    if not os.path.exists(root / file):
        with convert_write_errors(root / file):
            root.mkdir(parents=True, exist_ok=True)
            with instead(root / file) as new, open(new, "wb") as raw:
                np.savez(raw, **arrays)  # type: ignore[arg-type]  # no array may be named allow_pickle
    return file


def parts_of(data: Any) -> dict[str, Any]:
    """Return the arrays of a data set by name. Raises DataError for other values."""
    usage = (
        "give (x, y), (x, y, x_test, y_test), or a dict or object with "
        f"{join_few(list(ARRAYS), len(ARRAYS))}"
    )
    if isinstance(data, tuple | list):
        if len(data) not in (2, 4):
            raise DataError(f"hpcfed.run: data of {len(data)} parts; {usage}")
        return dict(zip(("x_train", "y_train", "x_test", "y_test"), data, strict=False))
    if isinstance(data, Mapping):
        for wrong in (name for name in data if name not in ARRAYS):
            raise DataError(f"hpcfed.run: data has no array {wrong!r}; {usage}")
        found = dict(data)
    else:
        found = {name: getattr(data, name) for name in ARRAYS if hasattr(data, name)}
    found = {name: value for name, value in found.items() if value is not None}
    if not found:
        raise DataError(f"hpcfed.run: data is a {type(data).__name__}; {usage}")
    return found


def as_array(name: str, value: Any) -> np.ndarray:
    """Return a value as an array of an .npz file, which holds numbers and texts."""
    to_numpy: Callable[[], Any] | None = getattr(value, "numpy", None)
    if callable(getattr(value, "detach", None)):  # a tensor, of a GPU perhaps
        value = value.detach().cpu().numpy()
    elif callable(to_numpy):
        value = to_numpy()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise DataError(f"hpcfed.run: data: {name} is no array: {error}") from error
    if array.dtype == object and all(isinstance(item, str) for item in array.flat):
        array = array.astype(str)
    if array.dtype.kind not in "biufSU":
        raise DataError(
            f"hpcfed.run: data: {name} holds {array.dtype}; give numbers, or texts for text_train"
        )
    return array


def check_importable(lent: Iterable[str], ranks: int) -> None:
    """Raise ConfigError if other ranks need objects that only this process has."""
    if names := list(lent):
        raise ConfigError(
            f"hpcfed.run: ranks = {ranks}, but {join_few(names, 4)} is defined in this script or "
            "notebook, which the other processes cannot import; move it into a file of its own, "
            "say mine.py, and import it from there, or leave ranks away"
        )
