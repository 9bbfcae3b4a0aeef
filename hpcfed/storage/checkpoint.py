"""Checkpoints: all state that a run needs to continue, by client and never by rank.

Each rank writes a part of its own; the index, written last, joins them: its groups link to the
items of all parts, so any HDF5 tool that opens it finds every client. A checkpoint exists when its
index does. A run saved on 3 ranks resumes on 4: each rank opens only the parts, and reads only the
MiB, that it needs.

    checkpoints/round-000040.h5                 the index
    checkpoints/round-000040/rank-0003.h5       the part of rank 3

The models after a method's final step are saved in the same form, as checkpoints/final-000040.h5.
They are no checkpoint: a run continues from before that step, so that it can be extended.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from hpcfed.core.errors import CheckpointError, DamagedError, unknown
from hpcfed.core.paths import glob_folder
from hpcfed.core.safe_read import Table, convert_read_errors
from hpcfed.storage import names, tree
from hpcfed.storage.atomic import TEMPORARY, convert_write_errors, open_file
from hpcfed.storage.checksum import identity
from hpcfed.storage.header import Index, check_header
from hpcfed.storage.record import FINAL_STEP
from hpcfed.storage.untrusted import external_file, number, subgroup

NAME = re.compile(r"(?:round|final)-(\d{6,})\.h5")  # of an index: how many rounds are done
PARTS = re.compile(r"(?:round|final)-\d{6,}(?:-(\d+))?")  # of a folder of parts
OPEN = 64  # parts that are open at a time: systems allow about 1000 files


class Reader:
    """One checkpoint, open for reading; closes at the end of a with block.

    header: as it was written.
    rounds: how many rounds are done.
    final: whether it holds the models after the method's final step, and is no checkpoint.
    Each MiB of a part is checked when it is read.
    Raises DamagedError if the index or a part is missing, cut short or altered, CheckpointError if
    it is of another format.
    """

    def __init__(self, path: Path):
        self.path, self._parts = path, ExitStack()
        self._open: dict[str, h5py.File] = {}
        with ExitStack() as stack:
            self._file = stack.enter_context(open_file(path, names.CHECKPOINT))
            self.rounds = number(self._file.id, "rounds")
            same_round(path, self.rounds)
            index = Index(
                header=tree.read_json(self._file, "header"),
                names=tree.read_json(self._file, "names"),
                parts=tree.read_json(self._file, "parts"),
            )
            check_header(index.header)
            self._stack = stack.pop_all()
        self.header: dict[str, Any] = Table(index.header, path)
        self.final = bool(self.header.get(FINAL_STEP))
        self._names, self._items_of = index.names, set(index.names)
        self.parts: dict[str, str] = index.parts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._parts.close()
        self._stack.close()

    def names(self, prefix: str = "") -> list[str]:
        """Return the names that begin with prefix: shared items, then the clients by number."""
        return [name for name in self._names if name.startswith(prefix)]

    def get(self, name: str) -> Any:
        """Return the item of that name; raises CheckpointError if there is none."""
        with convert_read_errors(self.path):
            return tree.read(self._items(name), name)

    def has(self, name: str, key: str) -> bool:
        """Return whether there is an item of that name, a dict, and has this key."""
        with convert_read_errors(self.path):
            return name in self._items_of and tree.has(self._items(name), name, key)

    def leaves(self, name: str) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield paths, kinds and arrays of that item (see `tree.leaves`), without torch."""
        with convert_read_errors(self.path):
            yield from tree.leaves(self._items(name), name)

    def verify(self) -> None:
        """Read all parts. Raises DamagedError if one is not as it was written."""
        for part in self.parts:
            with self._opened(part, verify_all=True):
                pass

    def _items(self, name: str) -> h5py.Group:
        """Return the group that holds the item of that name."""
        if name not in self._items_of:
            raise CheckpointError(f"{self.path}: {unknown('item', name, self._names)}")
        *groups, last = name.split("/")
        part = external_file(subgroup(self._file.id, "/".join(["items", *groups])), last)
        if part is None:
            raise DamagedError(f"{self.path}: {name}: is not a link to a part")
        return h5py.Group(subgroup(self._part(part).id, "items"))

    def _part(self, name: str) -> h5py.File:
        if name not in self._open:
            if len(self._open) >= OPEN:
                self._parts.close()
                self._open = {}
            self._open[name] = self._parts.enter_context(self._opened(name))
        return self._open[name]

    def _opened(self, name: str, verify_all: bool = False) -> AbstractContextManager[h5py.File]:
        """Open a part, if it is the one that was written for this index.

        Raises DamagedError if it is not.
        """
        path = self.path.parent / name
        if name not in self.parts:
            raise DamagedError(f"{self.path}: damaged: links to {name!r}, which is not part of it")
        try:
            intact = identity(path) == self.parts[name]
        except OSError as error:
            raise DamagedError(f"{path}: cannot be read: {error}") from error
        if not intact:
            raise DamagedError(
                f"{path}: damaged: another part than the one that {self.path.name} was written with"
            )
        return open_file(path, names.PART, verify_all)


def same_round(index: Path, rounds: int) -> None:
    """Raise DamagedError if a checkpoint's file name gives another round than its contents."""
    match = NAME.fullmatch(index.name)
    if match and int(match[1]) != rounds:
        raise DamagedError(
            f"{index}: is of round {rounds}, not of the round that its name says; give it its name"
        )


def rounds_of(path: Path) -> int:
    """Return how many rounds are done, from the name of a checkpoint.

    Raises CheckpointError if it is not the name of a checkpoint.
    """
    match = NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError(f"{path}: not a checkpoint; their names are like round-000040.h5")
    return int(match[1])


def saved(run: Path) -> list[Path]:
    """Return the checkpoints of a run, the newest first; empty if it has none."""
    return _saved(names.checkpoint_folder(run))


def with_models(run: Path) -> list[Path]:
    """Return the files from which trained models are taken, the first choice first.

    These are the models after the method's final step, unless a later round was saved since, and
    then the checkpoints.
    """
    return [i for i in _finals(run) if rounds_of(i) >= saved_rounds(run)] + saved(run)


def newest(run: Path) -> Path | None:
    """Return the checkpoint of a run with most rounds, None if it has none."""
    return next(iter(saved(run)), None)


def saved_rounds(run: Path) -> int:
    """Return the rounds of the newest checkpoint of a run; 0 if it has none."""
    index = newest(run)
    return rounds_of(index) if index else 0


def all_at(path: Path) -> list[Path]:
    """Return the checkpoints of a run folder, the newest first, or the one at that path."""
    return saved(path) if os.path.isdir(path) else [path]


def none_at(run: Path) -> CheckpointError:
    """Return the error about a run folder without checkpoints."""
    return CheckpointError(
        f"{names.checkpoint_folder(run)}: no checkpoint here; check the path, or start anew "
        f"without --resume"
    )


def open_checkpoint(path: Path) -> Reader:
    """Open the newest checkpoint of a run folder, or the one at that path.

    Raises CheckpointError if it cannot be used; the message offers the newest other one that can.
    """
    indices = all_at(path)
    if not indices:
        raise none_at(path)
    try:
        return Reader(indices[0])
    except DamagedError as error:
        raise DamagedError(f"{error}\n  {advice(indices[0])}") from error


def newest_header(path: Path) -> dict[str, Any]:
    """Return the header of the newest readable checkpoint of a run folder.

    path: the run folder, or one checkpoint. Returns an empty dict if there is none.
    """
    for file in all_at(path):
        with suppress(CheckpointError), Reader(file) as reader:
            return reader.header
    return {}


def advice(damaged: Path) -> str:
    """Return the advice to resume from the newest undamaged checkpoint of the folder."""
    for path in [path for path in _saved(damaged.parent) if path != damaged]:
        with suppress(CheckpointError), Reader(path) as file:
            file.verify()
            return f"this one is intact: resume from it with --resume {path}"
    return f"there is no other valid checkpoint in {damaged.parent}; start anew without --resume"


def fresh(index: Path) -> Path:
    """Return a new folder for the parts of a checkpoint that is about to be written."""
    taken = [number_of(parts) for parts in parts_of(index)]
    return names.parts_folder(index, 1 + max(taken, default=-1))


def parts_of(index: Path) -> list[Path]:
    """Return the folders of parts that belong to a checkpoint's index."""
    return [parts for parts in _parts(index.parent) if names.index_of(parts) == index]


def unfinished_parts(run: Path) -> list[Path]:
    """Return the folders of parts that no index names.

    Their index is missing, or names others. The parts of an unreadable index are not meant: it may
    be readable the next time.
    """
    folders = _parts(names.checkpoint_folder(run))
    several = Counter(map(names.index_of, folders))

    def unnamed(parts: Path) -> bool:
        index = names.index_of(parts)
        if names.is_missing(index):
            return True
        # read only if it has several folders, because that takes a millisecond
        return several[index] > 1 and number_of(parts) != parts_number(index) >= 0

    return list(filter(unnamed, folders))


def parts_number(index: Path) -> int:
    """Return the number of the folder that an index names; -1 if the index cannot be read."""
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
    """Delete all but the `keep` newest checkpoints, and parts that no index names.

    keep >= 1. No rank may be writing meanwhile. Files that cannot be deleted stay, and so do the
    parts of an unreadable index.
    """
    with suppress(OSError):
        for index in saved(run)[keep:]:
            remove(index)
        for parts in unfinished_parts(run):
            shutil.rmtree(parts)
        for left in names.checkpoint_folder(run).glob(f".*{TEMPORARY}"):
            left.unlink()


def remove(index: Path) -> None:
    """Delete a checkpoint, the index first, so that it exists as a whole or not at all.

    Raises OSError.
    """
    index.unlink(missing_ok=True)
    for parts in parts_of(index):
        remove_parts(parts)


def remove_parts(parts: Path) -> None:
    """Delete a folder of parts, as far as possible."""
    shutil.rmtree(parts, ignore_errors=True)


def drop_after(run: Path, rounds: int) -> None:
    """Delete the checkpoints of later rounds, unfinished ones, and models after a final step.

    For a run that continues from an earlier checkpoint: otherwise `newest` and `prune` would take
    those of the abandoned continuation for the newest. The final step will be done again. Raises
    WriteError if a file cannot be deleted.
    """
    for parts in unfinished_parts(run):
        with convert_write_errors(parts):
            shutil.rmtree(parts)
    later = [index for index in saved(run) if rounds_of(index) > rounds]
    for index in _finals(run) + later:
        with convert_write_errors(index):
            remove(index)


def _saved(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest first; empty if there is no such folder."""
    return _indices(folder, "round-*.h5")


def _finals(run: Path) -> list[Path]:
    """Return the files of a run's models after its method's final step, the newest first."""
    return _indices(names.checkpoint_folder(run), "final-*.h5")


def _indices(folder: Path, pattern: str) -> list[Path]:
    """Return the indices in a folder whose names fit the pattern, that of most rounds first."""
    paths = [path for path in glob_folder(folder, pattern) if NAME.fullmatch(path.name)]
    return sorted(paths, key=rounds_of, reverse=True)


def _parts(folder: Path) -> list[Path]:
    """Return the folders of parts in a folder."""
    return [
        path
        for path in glob_folder(folder, "*")
        if PARTS.fullmatch(path.name) and os.path.isdir(path)
    ]
