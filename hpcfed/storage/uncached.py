"""Files whose large parts pass through the system's memory without staying there.

A checkpoint is written once, read back once, and then not looked at, perhaps for ever. In the page
cache it would take the memory that training uses, and on virtual machines be slow: these hand out
memory that was not in use before at
0.4 GB/s. Linux 6.14 and later can do without (RWF_DONTCACHE), where the file system can; elsewhere
files are as ever.
"""

import errno
import io
import os
from pathlib import Path
from typing import Any, BinaryIO

from isal.isal_zlib import crc32

from hpcfed.core.paths import only_regular

BLOCK = 512  # bytes of a file before its data: the smallest user block that HDF5 allows
CHUNK = 1 << 20  # bytes of data that share a checksum
DONTCACHE = 0x80  # RWF_DONTCACHE of preadv2(2) and pwritev2(2), which Python has no name for
UNKNOWN = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # what says so
# bytes from which on it pays; HDF5 reads and writes its tables by the hundred bytes
LARGE = 1 << 20


class Passing(io.FileIO):
    """Such a file, unbuffered: a write may take less than all, as that of any raw file.

    sums: CRC-32 of the chunks of a sealed file (see `seal`) that were written as a whole, and in
    one piece, by number.
    """

    flags = DONTCACHE

    def __init__(self, path: Path, mode: str):
        super().__init__(path, mode, opener=only_regular)
        self.sums: dict[int, int] = {}

    def write(self, data: Any) -> int:
        view, start = memoryview(data).cast("B"), self.tell()
        n = super().write(view) if len(view) < LARGE else self._at(os.pwritev, view, super().write)
        self._sum(start, view[:n])
        return n

    def _sum(self, start: int, view: memoryview) -> None:
        """Keep up `sums` with what was written at this position."""
        stop = start + len(view)
        for i in range((start - BLOCK) // CHUNK, -(-(stop - BLOCK) // CHUNK)):
            first = BLOCK + i * CHUNK
            if start <= first and first + CHUNK <= stop:
                self.sums[i] = crc32(view[first - start : first - start + CHUNK])
            else:
                self.sums.pop(i, None)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        return (
            super().readinto(view)
            if len(view) < LARGE
            else self._at(os.preadv, view, super().readinto)
        )

    def _at(self, call: Any, view: memoryview, plain: Any) -> int:
        """This transfer at the file's position.

        `plain` where the system, or the file system, knows no such thing.
        """
        if not self.flags:
            return plain(view)
        try:
            n = call(self.fileno(), [view], self.tell(), self.flags)
        except OSError as error:
            if error.errno not in UNKNOWN:
                raise
            self.flags = 0
            return plain(view)
        self.seek(n, os.SEEK_CUR)
        return n


def new(path: Path) -> BinaryIO:
    """A file that is not there yet, to be written and read."""
    return io.BufferedRandom(Passing(path, "x+"))


def open_existing(path: Path) -> BinaryIO:
    """A file to be read."""
    return io.BufferedReader(Passing(path, "r"))
