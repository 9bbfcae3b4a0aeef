"""`hpcfed clean RUN...`: what runs keep on disk that nobody needs to read their results."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rich.console import Group
from rich.text import Text

from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.core.paths import glob_folder
from hpcfed.core.tables import size, table
from hpcfed.results.run import check_exists
from hpcfed.storage import checkpoint, names
from hpcfed.storage import sweep as sweeps
from hpcfed.storage.lock import Lock, find_holder
from hpcfed.storage.record import has_finished, load

WORLD = "hpcfed clean"  # holder of the lock of a run while its files are deleted


class Waste(NamedTuple):
    """Something that can be deleted: what it is, where, and its bytes."""

    what: str
    path: Path
    bytes: int


def clean(runs: Sequence[Path], delete: bool = False, last: bool = False) -> Group:
    """Return a table of what can be deleted, or has been.

    delete: delete it; else nothing is changed.
    last: of finished runs also the last checkpoint: results stay, but such a run has no models and
    cannot be resumed. Runs that another process has are left alone. Raises ConfigError if a file
    cannot be deleted.
    """
    rows, notes, total = [], [], 0
    for path in runs:
        for run, place in sweeps.runs(check_exists(path)):
            folder, rounds = names.folder_of(run), place[1].fields["rounds"] if place else 0
            if holder := find_holder(folder):
                notes.append(f"{folder}: {holder} has this run; it is left alone")
                continue
            find = remove_from if delete else find_waste
            for waste in list(find(folder, last, rounds)):
                rows.append((str(folder), waste.what, size(waste.bytes)))
                total += waste.bytes
    done = "deleted" if delete else "can be deleted; nothing has been yet: add --delete"
    notes.append(f"{size(total)} {done}" if rows else "nothing to delete")
    return Group(*([table("run,what,>size", rows, named=True)] if rows else []), *map(Text, notes))


def find_waste(folder: Path, last: bool, rounds: int) -> Iterator[Waste]:
    """Yield what of a run nobody needs: older checkpoints, and what interrupted writes left.

    rounds: as in `finished`.
    """
    indices = checkpoint.saved(folder)
    n_needed = 0 if last and finished(folder, rounds) else 1
    for index in checkpoint.with_models(folder) if not n_needed else ():
        if index not in indices:
            total = bytes_of(index, *checkpoint.parts_of(index))
            yield Waste("models after the final step", index, total)
    for index in indices[n_needed:]:
        what = "checkpoint" if indices.index(index) else "last checkpoint"
        total = bytes_of(index, *checkpoint.parts_of(index))
        yield Waste(f"{what} of round {checkpoint.rounds_of(index)}", index, total)
    for unfinished in checkpoint.unfinished_parts(folder):
        yield Waste("unfinished checkpoint", unfinished, bytes_of(unfinished))
    for spill in glob_folder(folder, names.spill_folder(folder, "*").name):
        yield Waste("values beside memory, of a run that was killed", spill, bytes_of(spill))


def remove_from(folder: Path, last: bool, rounds: int) -> list[Waste]:
    """Delete what `find_waste` finds, under the run's lock."""
    lock = Lock(folder, WORLD, end=None)
    lock.take()
    try:
        leftovers = list(find_waste(folder, last, rounds))
        for waste in leftovers:
            try:
                if waste.path.suffix == ".h5":
                    checkpoint.remove(waste.path)
                else:
                    shutil.rmtree(waste.path)
            except OSError as error:
                raise ConfigError(f"{waste.path}: cannot be deleted: {error.strerror}") from error
        return leftovers
    finally:
        lock.release()


def finished(folder: Path, rounds: int) -> bool:
    """Return whether the results of a run are readable and complete, with its final steps.

    rounds: of its sweep, which may have got more since; 0: of its own job.
    """
    with suppress(CheckpointError):
        record = load(folder)
        return has_finished(record, max(rounds, record.header["job"]["rounds"]))
    return False


def bytes_of(*paths: Path) -> int:
    """Return the bytes of files, and of all files in folders."""
    total = 0
    for path in paths:
        below = [Path(place) / name for place, _, files in os.walk(path) for name in files]
        for file in below or [path]:
            with suppress(OSError):
                total += os.stat(file).st_size
    return total
