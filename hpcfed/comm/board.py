"""Memory of a node that all its ranks write and read: there a sum costs two meetings a message, and no copies."""

import mmap
import os
import tempfile
from contextlib import suppress

import numpy as np

from hpcfed.comm.memory import FOLDERS
from hpcfed.comm.messages import MESSAGE, PART, Room

FOLDER = FOLDERS[0]  # where that gives too little room, ranks send one another what they have
ITEM = 8  # bytes of a float64


def line(ranks: int) -> int:
    """Bytes of a line at most."""
    return ITEM * (max(MESSAGE // ranks, PART) + 1)


def size_of(ranks: int) -> int:
    """Bytes that one rank writes at most: a line for each rank, and its own line of the outcome behind them."""
    return (ranks + 1) * line(ranks)


def make(ranks: int) -> str:
    """A file for so many ranks, whose path is returned; "" where there is no such memory, or no room in it."""
    with suppress(OSError):
        handle, path = tempfile.mkstemp(prefix="hpcfed-", dir=FOLDER)
        try:
            os.posix_fallocate(handle, 0, ranks * size_of(ranks))  # now, for a mapping without room ends the process
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(handle)
        return path
    return ""


def look(path: str, rank: int, ranks: int) -> "Board | None":
    """This rank's view of the file at that path, if it sees one."""
    try:
        return Board(path, rank, ranks) if path else None
    except OSError:
        return None


class Board:
    """A rank's view of such a file, which may be removed as soon as all ranks have theirs."""

    def __init__(self, path: str, rank: int, ranks: int):
        self.rank, self.ranks = rank, ranks
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), ranks * size_of(ranks))
        self.memory = np.frombuffer(memory, np.uint8).reshape(ranks, size_of(ranks))

    def room(self, lines: int, columns: int, dtype: np.dtype) -> Room:
        """The buffers of a message: a rank's own are what it writes for others, the others' what it reads.

        It may write `sent` again after the second meeting, and `line` after the first one of the next message: they
        never share a place, also where messages differ in size.
        """
        given = self.memory[:, : lines * columns * ITEM].view(np.float64).reshape(self.ranks, lines, columns)
        first = self.ranks * line(self.ranks)
        done = self.memory[:, first : first + columns * dtype.itemsize].view(dtype)
        given[self.rank] = 0.0
        return Room(given[self.rank], given[:, self.rank], done[self.rank], done)
