"""Checkpoints: all that a run needs to go on, by client and never by rank.

Each rank writes what it has into a part of its own; the index, written last, makes them one: its
groups link to the items of all parts, so that any HDF5 tool that opens it finds every client. A
checkpoint exists when its index does. A run saved on 3 ranks resumes on 4: each rank opens the
parts, and reads of them the MiB, that it needs.

    checkpoints/round-000040.h5                 the index
    checkpoints/round-000040/rank-0003.h5       what rank 3 had
"""

import os
import re
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcfed.core.errors import CheckpointError, DamagedError
from hpcfed.core.paths import glob_folder
from hpcfed.storage import names
from hpcfed.storage.atomic import TEMPORARY, convert_write_errors
from hpcfed.storage.reader import NAME, Reader

PARTS = re.compile(r"round-\d{6,}(?:-(\d+))?")


def rounds_of(path: Path) -> int:
    """How many rounds are done, from the file's name.

    CheckpointError if it is not a checkpoint's.
    """
    match = NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError(f"{path}: not a checkpoint; their names are like round-000040.h5")
    return int(match[1])


def newest(run: Path) -> Path | None:
    """The checkpoint of a run with most rounds, None if it has none."""
    return next(iter(_saved(names.checkpoint_folder(run))), None)


def candidates(path: Path) -> list[Path]:
    """The checkpoints of a run folder, the newest first, or the one at that path.

    CheckpointError if there is none.
    """
    found = _saved(names.checkpoint_folder(path)) if path.is_dir() else [path]
    if not found:
        folder = names.checkpoint_folder(path)
        raise CheckpointError(
            f"{folder}: no checkpoint here; check the path, or start anew without --resume"
        )
    return found


def open_checkpoint(path: Path) -> Reader:
    """The newest checkpoint of a run folder, or the one at that path.

    Raises CheckpointError if it cannot be used; the message offers the newest other one that can.
    """
    file = candidates(path)[0]
    try:
        return Reader(file)
    except DamagedError as error:
        raise with_advice(error, file) from error


def newest_header(path: Path) -> dict[str, Any]:
    """The header of the newest checkpoint of a run folder that can be read, or of the one at that
    path; empty where there is none.
    """
    for file in _saved(names.checkpoint_folder(path)) if os.path.isdir(path) else [path]:
        with suppress(CheckpointError), Reader(file) as saved:
            return saved.header
    return {}


def with_advice(error: CheckpointError, damaged: Path) -> CheckpointError:
    """The error, with the newest checkpoint beside the damaged one that is whole."""
    for path in _saved(damaged.parent):
        try:
            with Reader(path, whole=True) as file:
                file.check()
        except CheckpointError:
            continue
        return type(error)(f"{error}\n  this one is whole: resume from it with --resume {path}")
    missing = f"there is no other valid checkpoint in {damaged.parent}; start anew without --resume"
    return type(error)(f"{error}\n  {missing}")


def fresh(index: Path) -> Path:
    """A folder for the parts of a checkpoint that is to be written, in which nothing is."""
    taken = [number_of(parts) for parts in _parts(index.parent) if names.index_of(parts) == index]
    return names.parts_folder(index, 1 + max(taken, default=-1))


def unfinished_parts(run: Path) -> list[Path]:
    """Folders of parts that are newer than the index that belongs to them, or have none that can be
    read.
    """
    return [
        parts
        for parts in _parts(names.checkpoint_folder(run))
        if number_of(parts) > parts_number(names.index_of(parts))
    ]


def parts_number(index: Path) -> int:
    """The number of the folder that an index names; -1 if there is no index that can be read."""
    try:
        with Reader(index) as file:
            return max(
                (number_of(index.parent / part.split("/")[0]) for part in file.parts), default=-1
            )
    except CheckpointError:
        return -1


def number_of(parts: Path) -> int:
    return int(PARTS.fullmatch(parts.name)[1] or 0)  # type: ignore[index]


def prune(run: Path, keep: int) -> None:
    """Delete all but the `keep` newest checkpoints, parts without an index, and of several those it
    does not name.

    keep >= 1.  For while no rank writes. What cannot be deleted stays, and so do the parts of an
    index that cannot be read.
    """
    folder = names.checkpoint_folder(run)
    with suppress(OSError):
        for index in _saved(folder)[keep:]:
            remove(index)
        found = _parts(folder)
        many = Counter(map(names.index_of, found))
        for parts in found:
            index = names.index_of(
                parts
            )  # is read only where it has a choice: that takes a millisecond
            if not index.exists() or (
                many[index] > 1 and number_of(parts) != parts_number(index) >= 0
            ):
                shutil.rmtree(parts)
        for left in folder.glob(f".*{TEMPORARY}"):
            left.unlink()


def remove(index: Path) -> None:
    """Delete a checkpoint, the index first: it is there as a whole or not at all. OSError."""
    index.unlink(missing_ok=True)
    for parts in _parts(index.parent):
        if names.index_of(parts) == index:
            remove_parts(parts)


def remove_parts(parts: Path) -> None:
    """Delete a folder of parts, as far as that can be done."""
    shutil.rmtree(parts, ignore_errors=True)


def drop_after(run: Path, rounds: int) -> None:
    """Delete the checkpoints of later rounds, and unfinished ones; WriteError if that is refused.

    For a run that goes on from an earlier one and makes them anew; otherwise `newest` and `prune`
    would take those of the abandoned continuation for the newest.
    """
    for parts in unfinished_parts(run):
        with convert_write_errors(parts):
            shutil.rmtree(parts)
    for index in _saved(names.checkpoint_folder(run)):
        if rounds_of(index) > rounds:
            with convert_write_errors(index):
                remove(index)


def _saved(folder: Path) -> list[Path]:
    """Checkpoints in a folder, the newest first; empty if there is no such folder."""
    found = [path for path in glob_folder(folder, "round-*.h5") if NAME.fullmatch(path.name)]
    return sorted(found, key=rounds_of, reverse=True)


def _parts(folder: Path) -> list[Path]:
    """Folders of parts in a folder."""
    return [
        path
        for path in glob_folder(folder, "round-*")
        if path.is_dir() and PARTS.fullmatch(path.name)
    ]
