"""Memory that all ranks of a node write and read, for sums.

A sum then costs two barriers for each message, and no copies.
"""

import mmap
import os
import tempfile
from contextlib import suppress

import numpy as np

from hpcfed.comm.shared_memory import FOLDERS, PREFIX
from hpcfed.comm.sum_messages import ITEM, most, pad_columns

FOLDER = FOLDERS[0]  # if it is too small, ranks send messages instead


def line(ranks: int) -> int:
    """Return the largest size of a line in bytes."""
    return ITEM * pad_columns(most(ranks))


def size_of(each: int, ranks: int) -> int:
    """Return the bytes of the shared file for `each` ranks of a node.

    It has a line from each of them for every rank, and the lines of the outcome.
    """
    return (each + 1) * ranks * line(ranks)


def make(each: int, ranks: int) -> str:
    """Make such a file and return its path; "" if there is no such memory, or no space in it."""
    with suppress(OSError):
        handle, path = tempfile.mkstemp(prefix=f"{PREFIX}{os.getpid()}-", dir=FOLDER)
        try:
            # now, because a mapping without space would end the process
            os.posix_fallocate(handle, 0, size_of(each, ranks))
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(handle)
        return path
    return ""


def look(path: str, each: int, ranks: int) -> "NodeMemory | None":
    """Return a rank's view of the file at that path; None if the rank cannot open it."""
    try:
        return NodeMemory(path, each, ranks) if path else None
    except OSError:
        return None


class NodeMemory:
    """A rank's view of the shared file, which may be removed once all ranks have their view.

    Contributions and totals never overlap, even if messages differ in size: a rank may write the
    one while another still reads the other.
    """

    def __init__(self, path: str, each: int, ranks: int):
        self.each, self.ranks = each, ranks
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), size_of(each, ranks))
        self.memory = np.frombuffer(memory, np.uint8)

    def contributions(self, columns: int) -> np.ndarray:
        """Return each node rank's contribution to every rank, [each, R, columns] float64."""
        wide = self.memory[: self.each * self.ranks * line(self.ranks)].reshape(self.each, -1)
        return (
            wide[:, : self.ranks * columns * ITEM]
            .view(np.float64)
            .reshape(self.each, self.ranks, columns)
        )

    def totals(self, columns: int, dtype: np.dtype) -> np.ndarray:
        """Return the line that each rank has finished, [R, columns]."""
        last = self.memory[self.each * self.ranks * line(self.ranks) :]
        return (
            last[: self.ranks * columns * dtype.itemsize].view(dtype).reshape(self.ranks, columns)
        )
