"""Checkpoints: all that a run needs to go on, by client and never by rank.

So a run saved on 3 ranks resumes on 4. Items are put and got one by one: no rank holds all clients at once.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from hpcfed.errors import CheckpointError, unknown
from hpcfed.storage import names, tree
from hpcfed.storage.atomic import opened, replacing

NAME = re.compile(r"round-(\d{6,})\.h5")


class Writer:
    """Takes the items of one checkpoint, one after the other."""

    def __init__(self, items: h5py.Group):
        self._items = items
        self.names: list[str] = []

    def put(self, name: str, item: Any) -> None:
        """Save an item (see `tree.write`) under a name such as "state" or "clients/3"; each name once."""
        tree.write(self._items, name, item)
        self.names.append(name)


class Reader:
    """One checkpoint, open for reading; closes at the end of a with block.

    header: as it was written. rounds: how many rounds are done.
    Raises CheckpointError, before anything is read, if the file is missing, cut short, altered or foreign.
    """

    def __init__(self, path: Path):
        self.path = path
        self._stack = ExitStack()
        self._file = self._stack.enter_context(opened(path, names.CHECKPOINT))
        self.header: dict[str, Any] = tree.read_json(self._file, "header")
        self.rounds = int(self._file.attrs["rounds"])
        self._names: list[str] = tree.read_json(self._file, "names")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def names(self, prefix: str = "") -> list[str]:
        """The names that begin with prefix, in the order in which they were put."""
        return [name for name in self._names if name.startswith(prefix)]

    def get(self, name: str) -> Any:
        """The item of that name; CheckpointError if there is none."""
        self._check(name)
        return tree.read(self._file["items"], name)

    def leaves(self, name: str) -> Iterator[tuple[str, str, np.ndarray]]:
        """The item of that name as paths, kinds and arrays (see `tree.leaves`), without torch."""
        self._check(name)
        return tree.leaves(self._file["items"], name)

    def _check(self, name: str) -> None:
        if name not in self._names:
            raise CheckpointError(f"{self.path}: {unknown('item', name, self._names)}")


@contextmanager
def writer(run: Path, rounds: int, header: dict[str, Any]) -> Iterator[Writer]:
    """Write the checkpoint of a run after `rounds` rounds; it appears when the block ends without error.

    header: JSON-able; "job" is what `same_job` compares. Raises CheckpointError if it cannot be written;
    the checkpoints before it are as they were.
    """
    with replacing(names.checkpoint_file(run, rounds), names.CHECKPOINT) as file:
        file.attrs["rounds"] = rounds
        tree.write_json(file, "header", header)
        items = Writer(file.create_group("items"))
        yield items
        tree.write_json(file, "names", items.names)


def rounds_of(path: Path) -> int:
    """How many rounds are done, from the file's name; CheckpointError if it is not a checkpoint's."""
    match = NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError(f"{path}: not a checkpoint; their names are like round-000040.h5")
    return int(match[1])


def newest(run: Path) -> Path | None:
    """The checkpoint of a run with most rounds, None if it has none."""
    return next(iter(_saved(names.checkpoint_folder(run))), None)


def prune(run: Path, keep: int) -> None:
    """Delete all but the `keep` newest checkpoints; keep >= 1."""
    for path in _saved(names.checkpoint_folder(run))[keep:]:
        path.unlink(missing_ok=True)


def drop_after(run: Path, rounds: int) -> None:
    """Delete the checkpoints of later rounds.

    For a run that goes on from an earlier one and makes them anew; otherwise `newest` and `prune` would
    take those of the abandoned continuation for the newest.
    """
    for path in _saved(names.checkpoint_folder(run)):
        if rounds_of(path) > rounds:
            path.unlink(missing_ok=True)


def open_checkpoint(path: Path) -> Reader:
    """The newest checkpoint of a run folder, or the one at that path, with its checksum verified.

    Raises CheckpointError if it cannot be used; the message offers the newest other one that can.
    """
    file = newest(path) if os.path.isdir(path) else path
    if file is None:
        folder = names.checkpoint_folder(path)
        raise CheckpointError(f"{folder}: no checkpoint here; check the path, or start anew without --resume")
    try:
        return Reader(file)
    except CheckpointError as error:
        raise CheckpointError(f"{error}\n  {_instead_of(file)}") from error


def same_job(ours: dict[str, Any], theirs: dict[str, Any], ignore: set[str]) -> None:
    """Raise CheckpointError, with the fields that differ, unless both jobs are the same.

    ignore: dotted names of fields or parts that may differ ("run" covers "run.threads").
    """
    ours = json.loads(json.dumps(ours))  # as theirs was written: tuples are lists
    here, there = dict(_flat(ours)), dict(_flat(theirs))
    absent = "absent"
    differences = [
        f"{name}: {here.get(name, absent)} here, {there.get(name, absent)} in the checkpoint"
        for name in sorted(here.keys() | there.keys())
        if here.get(name, absent) != there.get(name, absent) and not _parents(name) & ignore
    ]
    if differences:
        raise CheckpointError(
            "the checkpoint is of another job:\n  "
            + "\n  ".join(differences)
            + "\n  set these fields as they are in the checkpoint, or start anew without --resume"
        )


def _saved(folder: Path) -> list[Path]:
    """Checkpoints in a folder, the newest first; empty if there is no such folder."""
    found = [path for path in folder.glob("round-*.h5") if NAME.fullmatch(path.name)]
    return sorted(found, key=rounds_of, reverse=True)


def _instead_of(damaged: Path) -> str:
    for path in _saved(damaged.parent):
        try:
            Reader(path).close()
        except CheckpointError:
            continue
        return f"this one is whole: resume from it with --resume {path}"
    return f"there is no other valid checkpoint in {damaged.parent}; start anew without --resume"


def _flat(part: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of nested dicts."""
    if isinstance(part, dict) and part:
        for key, value in part.items():
            yield from _flat(value, f"{name}.{key}" if name else key)
    else:
        yield name, part


def _parents(name: str) -> set[str]:
    """a.b.c: a, a.b and a.b.c."""
    parts = name.split(".")
    return {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
