"""Reading of one checkpoint: its index, and the parts that are needed."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from hpcfed.core.errors import CheckpointError, DamagedError, unknown
from hpcfed.core.safe_read import Table, convert_read_errors
from hpcfed.storage import names, tree
from hpcfed.storage.atomic import open_file
from hpcfed.storage.checksum import identity
from hpcfed.storage.header import Index, check_header
from hpcfed.storage.untrusted import link, number, subgroup

NAME = re.compile(r"round-(\d{6,})\.h5")  # of an index: how many rounds are done
OPEN = 64  # parts that are open at a time: systems allow about 1000 files


class Reader:
    """One checkpoint, open for reading; closes at the end of a with block.

    header: as it was written.
    rounds: how many rounds are done.
    whole: whether parts are checked completely when they are opened, instead of each MiB when it is
    read.
    Raises DamagedError if the index or a part is missing, cut short or altered, CheckpointError if
    it is of another format.
    """

    def __init__(self, path: Path, whole: bool = False):
        self.path, self.whole = path, whole
        self._stack, self._parts = ExitStack(), ExitStack()
        self._open: dict[str, h5py.File] = {}
        self._file = self._stack.enter_context(open_file(path, names.CHECKPOINT))
        try:
            with convert_read_errors(path):
                self._read()
        except CheckpointError:
            self.close()
            raise

    def _read(self) -> None:
        """Read the index."""
        found = Index(
            header=tree.read_json(self._file, "header"),
            rounds=number(self._file, "rounds"),
            names=tree.read_json(self._file, "names"),
            parts=tree.read_json(self._file, "parts"),
        )
        check_header(found.header)
        same_round(self.path, found.rounds)
        self.header: dict[str, Any] = Table(found.header, self.path)
        self.rounds = found.rounds
        self._names, self._known = found.names, set(found.names)
        self.parts: dict[str, str] = found.parts

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

    def leaves(self, name: str) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield paths, kinds and arrays of that item (see `tree.leaves`), without torch."""
        with convert_read_errors(self.path):
            yield from tree.leaves(self._items(name), name)

    def check(self) -> None:
        """Read all parts that have not been read yet."""
        for part in self.parts:
            self._part(part)

    def _items(self, name: str) -> h5py.Group:
        """Return the group that holds the item of that name."""
        if name not in self._known:
            raise CheckpointError(f"{self.path}: {unknown('item', name, self._names)}")
        *groups, last = name.split("/")
        group = subgroup(self._file, "/".join(["items", *groups]))
        target = link(group, last)
        if not isinstance(target, h5py.ExternalLink):
            raise DamagedError(f"{self.path}: {name}: is no link to a part")
        return subgroup(self._part(target.filename), "items")

    def _part(self, name: str) -> h5py.File:
        if name not in self._open:
            if len(self._open) >= OPEN:
                self._parts.close()
                self._open = {}
            self._open[name] = self._parts.enter_context(self._opened(name))
        return self._open[name]

    def _opened(self, name: str) -> AbstractContextManager[h5py.File]:
        """Open a part, if it is the one that was written for this index.

        Raises DamagedError if it is not.
        """
        path = self.path.parent / name
        if name not in self.parts:
            raise DamagedError(f"{self.path}: damaged: links to {name!r}, which is no part of it")
        try:
            own = identity(path) == self.parts[name]
        except OSError as error:
            raise DamagedError(f"{path}: cannot be read: {error}") from error
        if not own:
            raise DamagedError(
                f"{path}: damaged: another part than the one that {self.path.name} was written with"
            )
        return open_file(path, names.PART, self.whole)


def same_round(index: Path, rounds: int) -> None:
    """Raise DamagedError if a checkpoint's file name gives another round than its contents."""
    match = NAME.fullmatch(index.name)
    if match and int(match[1]) != rounds:
        raise DamagedError(
            f"{index}: is of round {rounds}, not of the round that its name says; give it its name"
        )
