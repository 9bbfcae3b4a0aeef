"""The definition file of a sweep and the outcomes of its runs; readable without torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hpcfed.core.errors import CheckpointError, DamagedError
from hpcfed.core.paths import read_text
from hpcfed.core.safe_read import Table, parse_json
from hpcfed.storage import header, names
from hpcfed.storage.atomic import convert_write_errors, put
from hpcfed.storage.fields import Fields
from hpcfed.storage.header import FileText, Finite

PRUNED = "pruned"  # beginning of the line about a run that was ended because it is hopeless


def of_folder(name: str) -> str:
    """Return the name of a folder. Raises ValueError for "." and ".."."""
    if name in (".", ".."):
        raise ValueError(f"{name} is not a folder of its own")
    return name


DEEP = 3  # levels of folders below which runs are looked for
FORMAT, VERSION = "hpcfed-sweep", 1
# the name of a folder beside sweep.json
NAME = Annotated[str, Field(pattern=r"^[^/\x00]{1,255}$"), AfterValidator(of_folder)]


@dataclass(frozen=True)
class Member:
    """One run of a sweep.

    words: its own flags, in addition to those of all runs.
    fields: its whole job, as it was when the sweep was defined.
    """

    name: str
    words: list[str]
    fields: Fields


@dataclass(frozen=True)
class Sweep:
    """Runs that differ in some fields of one job.

    words: the job files and the flags that all runs have.
    directory: the working directory of the runs, for relative paths in their flags.
    ranks: the number of ranks of each run.
    launcher: the command that starts them, if it is not mpirun.
    """

    folder: Path
    words: list[str]
    directory: str
    ranks: int
    launcher: str
    runs: tuple[Member, ...]


@dataclass(frozen=True)
class End:
    """The outcome of a run.

    status: the exit status.
    line: the last line that it printed about its end.
    when: Unix seconds.
    """

    status: int
    line: str
    when: float


class OneRun(BaseModel):
    """A run in the file."""

    model_config = ConfigDict(strict=True)
    name: NAME
    words: list[FileText]
    job: Fields


class Definition(BaseModel):
    """The contents of the definition file."""

    model_config = ConfigDict(strict=True)
    words: list[FileText]
    directory: FileText
    ranks: Annotated[int, Field(ge=1, le=10**7)]
    launcher: FileText
    job: Fields
    runs: list[OneRun]


class Ended(BaseModel):
    """The contents of the file about a run's end."""

    model_config = ConfigDict(strict=True)
    status: Annotated[int, Field(ge=-(2**31), le=2**31)]
    line: FileText
    when: Annotated[Finite, Field(ge=0, le=1e11)]

    def end(self) -> End:
        return End(self.status, self.line, self.when)


def check_fields(fields: Fields, path: Path) -> Fields:
    """Return a run's job from the file at this path.

    Raises DamagedError for a field of another type.
    """
    try:
        header.check_fields(fields)
    except DamagedError as error:
        raise DamagedError(
            f"{path}: not as `hpcfed sweep` writes it: {error}; define the sweep again"
        ) from error
    return Table(fields, path)


def array_size(sweep: Sweep) -> int:
    """Return the number of tasks of an array job; task i runs `hpcfed sweep --task i FOLDER`."""
    return len(sweep.runs)


def exists(folder: Path) -> bool:
    return os.path.isfile(names.sweep_file(folder))


def write(sweep: Sweep) -> None:
    """Write the definition; fields that all runs share are stored once.

    Raises WriteError if the disk refuses.
    """
    fields = sweep.runs[0].fields
    common = {
        name: value
        for name, value in fields.items()
        if all(name in run.fields and run.fields[name] == value for run in sweep.runs)
    }
    runs = [
        {"name": run.name, "words": run.words, "job": _without(run.fields, common)}
        for run in sweep.runs
    ]
    about = {
        "words": sweep.words,
        "directory": sweep.directory,
        "ranks": sweep.ranks,
        "launcher": sweep.launcher,
    }
    text = {"format": FORMAT, "version": VERSION, **about, "job": common, "runs": runs}
    put(names.sweep_file(sweep.folder), f"{json.dumps(text, indent=1)}\n".encode())


def read(folder: Path) -> Sweep:
    """Return the sweep in this folder.

    Raises CheckpointError if there is none, or its file cannot be understood.
    """
    path = names.sweep_file(folder)
    try:
        text = parse_json(read_text(path), str(path))
        if (text["format"], text["version"]) != (FORMAT, VERSION):
            raise CheckpointError(
                f"{path}: {text['format']!r} of version {text['version']}, but this hpcfed reads "
                f"{FORMAT!r} of version {VERSION}"
            )
        definition = Definition.model_validate(text)
        runs = tuple(
            Member(run.name, run.words, check_fields(definition.job | run.job, path))
            for run in definition.runs
        )
        return Sweep(
            folder,
            definition.words,
            definition.directory,
            definition.ranks,
            definition.launcher,
            runs,
        )
    except DamagedError:
        raise
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error.strerror}; give the folder of a sweep"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: not as `hpcfed sweep` writes it ({error!r}); define the sweep again"
        ) from error


def runs(path: Path) -> Iterator[tuple[Path, tuple[Sweep, Member] | None]]:
    """Yield the run at this path, or the runs of the sweep there, begun or not.

    Of a folder that is neither a run nor a sweep they are the runs and sweeps below it, and the
    result files (.h5) in it, by name. Each comes with its sweep and member, or None if it belongs
    to no sweep. Raises CheckpointError as `read` does.
    """
    if exists(path):
        sweep = read(path)
        for run in sweep.runs:
            yield path / run.name, (sweep, run)
        return
    below = [] if names.is_run(path) else list(runs_below(path))
    if not below:
        yield path, None
    for place in below:
        yield from runs(place)


def runs_below(folder: Path, levels: int = DEEP) -> Iterator[Path]:
    """Yield the result files in a folder, and the runs and sweeps up to `levels` below it."""
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        place = folder / name
        if exists(place) or names.is_run(place):
            yield place
        elif os.path.isdir(place) and levels > 1:
            yield from runs_below(place, levels - 1)
        elif place.suffix == ".h5" and levels == DEEP:
            yield place


def note(sweep: Sweep, run: str, end: End | None) -> None:
    """Record how a run ended; end = None records that it has begun. Raises WriteError."""
    path = names.end_file(sweep.folder, run)
    if end:
        put(path, f"{json.dumps(vars(end))}\n".encode())
    else:
        with convert_write_errors(path):
            path.unlink(missing_ok=True)


def last_end(sweep: Sweep, run: str) -> End | None:
    """Return how a run last ended; None if it has not, or if that is unknown."""
    with suppress(OSError, ValueError, TypeError, CheckpointError):
        path = names.end_file(sweep.folder, run)
        return Ended.model_validate(parse_json(read_text(path), str(path))).end()
    return None


def make_end(status: int, line: str) -> End:
    return End(status, line, time())


def _without(fields: Fields, common: Fields) -> Fields:
    return {name: value for name, value in fields.items() if name not in common}
