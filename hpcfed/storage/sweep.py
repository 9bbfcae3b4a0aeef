"""The file that says which runs a sweep has, and what became of them; readable without torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import time

from hpcfed.errors import CheckpointError
from hpcfed.storage import names
from hpcfed.storage.atomic import put
from hpcfed.storage.fields import Fields

FORMAT, VERSION = "hpcfed-sweep", 1


@dataclass(frozen=True)
class Member:
    """One run of a sweep.

    words: its own flags, beside those that all have.  fields: its whole job, as it was when the
    sweep was defined.
    """

    name: str
    words: list[str]
    fields: Fields


@dataclass(frozen=True)
class Sweep:
    """Runs that differ in some fields of one job.

    words: the job file and the flags that all runs have.  directory: where they start, for relative
    paths in them.
    ranks: of each run.  launcher: the command that starts them, where it is not mpirun.
    """

    folder: Path
    words: list[str]
    directory: str
    ranks: int
    launcher: str
    runs: tuple[Member, ...]

    def run(self, i: int) -> Path:
        """The folder of the i-th run, from 0."""
        return self.folder / self.runs[i].name


@dataclass(frozen=True)
class End:
    """How a run last ended: the exit status, the last line that it printed about that, and when
    (Unix seconds).
    """

    status: int
    line: str
    when: float


def array_size(sweep: Sweep) -> int:
    """How many tasks an array job needs: task i is `hpcfed sweep --task i FOLDER`, i from 0."""
    return len(sweep.runs)


def exists(folder: Path) -> bool:
    return os.path.isfile(names.sweep_file(folder))


def write(sweep: Sweep) -> None:
    """Store the definition; WriteError where the disk refuses. What all runs have in common stands
    there once.
    """
    first = sweep.runs[0].fields
    common = {
        name: value
        for name, value in first.items()
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
    """The sweep in this folder. CheckpointError if there is none, or its file cannot be
    understood.
    """
    path = names.sweep_file(folder)
    try:
        text = json.loads(path.read_text(encoding="utf-8"))
        if (text["format"], text["version"]) != (FORMAT, VERSION):
            raise CheckpointError(
                f"{path}: {text['format']!r} of version {text['version']}, but this hpcfed reads "
                f"{FORMAT!r} of version {VERSION}"
            )
        runs = tuple(
            Member(run["name"], run["words"], text["job"] | run["job"]) for run in text["runs"]
        )
        return Sweep(
            folder, text["words"], text["directory"], text["ranks"], text["launcher"], runs
        )
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error.strerror}; give the folder of a sweep"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: not as `hpcfed sweep` writes it ({error!r}); define the sweep again"
        ) from error


def runs(path: Path) -> Iterator[tuple[Path, tuple[Sweep, Member] | None]]:
    """The run at this path, or those of the sweep there, begun or not; each with what it is there,
    None if in none.

    Raises CheckpointError as `read`.
    """
    if not exists(path):
        yield path, None
        return
    sweep = read(path)
    for run in sweep.runs:
        yield path / run.name, (sweep, run)


def note(sweep: Sweep, run: str, end: End | None) -> None:
    """Record how a run ended; None: it is begun, and has not."""
    path = names.end_file(sweep.folder, run)
    if end:
        put(path, f"{json.dumps(vars(end))}\n".encode())
    else:
        path.unlink(missing_ok=True)


def ended(sweep: Sweep, run: str) -> End | None:
    """How a run last ended; None where it has not, or nobody knows."""
    with suppress(OSError, ValueError, TypeError):
        return End(**json.loads(names.end_file(sweep.folder, run).read_text(encoding="utf-8")))
    return None


def now_ended(status: int, line: str) -> End:
    return End(status, line, time())


def _without(fields: Fields, common: Fields) -> Fields:
    return {name: value for name, value in fields.items() if name not in common}
