"""Memory of a node that all its ranks write and read: there a sum costs two meetings a message, and
no copies.
"""

import mmap
import os
import tempfile
from contextlib import suppress

import numpy as np

from hpcfed.comm.memory import FOLDERS, PREFIX
from hpcfed.comm.messages import ITEM, most, pad_columns

FOLDER = FOLDERS[0]  # where that gives too little room, ranks send one another what they have


def line(ranks: int) -> int:
    """Bytes of a line at most."""
    return ITEM * pad_columns(most(ranks))


def size_of(each: int, ranks: int) -> int:
    """Bytes for `each` ranks of a node: each gives a line for every rank; and for the lines of the
    outcome.
    """
    return (each + 1) * ranks * line(ranks)


def make(each: int, ranks: int) -> str:
    """Such a file, whose path is returned; "" where there is no such memory, or no room in it."""
    with suppress(OSError):
        handle, path = tempfile.mkstemp(prefix=f"{PREFIX}{os.getpid()}-", dir=FOLDER)
        try:
            os.posix_fallocate(
                handle, 0, size_of(each, ranks)
            )  # now, for a mapping without room ends the process
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(handle)
        return path
    return ""


def look(path: str, each: int, ranks: int) -> "NodeMemory | None":
    """A rank's view of the file at that path, if it sees one."""
    try:
        return NodeMemory(path, each, ranks) if path else None
    except OSError:
        return None


class NodeMemory:
    """A rank's view of such a file, which may be removed as soon as all ranks have theirs.

    What is given and what is done never share a place, also where messages differ in size: a rank
    may write the one while another still reads the other.
    """

    def __init__(self, path: str, each: int, ranks: int):
        self.each, self.ranks = each, ranks
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), size_of(each, ranks))
        self.memory = np.frombuffer(memory, np.uint8)

    def contributions(self, columns: int) -> np.ndarray:
        """What each rank of the node gives to every rank, [each, R, columns] float64."""
        wide = self.memory[: self.each * self.ranks * line(self.ranks)].reshape(self.each, -1)
        return (
            wide[:, : self.ranks * columns * ITEM]
            .view(np.float64)
            .reshape(self.each, self.ranks, columns)
        )

    def totals(self, columns: int, dtype: np.dtype) -> np.ndarray:
        """The line that each rank has finished, [R, columns]."""
        last = self.memory[self.each * self.ranks * line(self.ranks) :]
        return (
            last[: self.ranks * columns * dtype.itemsize].view(dtype).reshape(self.ranks, columns)
        )
