"""Files whose large transfers bypass the system's page cache.

A checkpoint is written once, read back once, and then perhaps never used. In the page cache it
would take memory that training uses, and on virtual machines be slow: these provide memory that was
not in use before at 0.4 GB/s. Linux 6.14 and later can do without the cache (RWF_DONTCACHE), if the
file system supports it; elsewhere files are as usual.
"""

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32

from hpcfed.core.paths import only_regular

BLOCK = 512  # bytes of a file before its data: the smallest user block that HDF5 allows
CHUNK = 1 << 20  # bytes of data that share a checksum
DONTCACHE = 0x80  # RWF_DONTCACHE of preadv2(2) and pwritev2(2), which Python has no name for
UNKNOWN = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # errors if it is not supported
# bytes above which it is worthwhile; HDF5 reads and writes its tables by the hundred bytes
LARGE = 1 << 20


class Passing(io.FileIO):
    """An unbuffered file of this kind: a write may take less than all, as with any raw file.

    What is written is what checksums are computed from, whether or not the system keeps it: chunks
    that are written as a whole and in one piece have their sum from memory, and anything else is
    read back at once.
    sums: CRC-32, by number, of those chunks of a file with checksums (`checksum`) that were written
    as a whole and in one piece.
    defer: whether a write that fails counts as done, as do all after it, and leaves its `error`.
    HDF5 does not survive a failed write while it closes a file: it keeps the file open, and takes
    later ones for it.
    """

    flags = DONTCACHE
    defer = False
    error: OSError | None = None

    def __init__(self, path: Path, mode: str):
        super().__init__(path, mode, opener=only_regular)
        self.sums: dict[int, int] = {}

    def write(self, data: Any) -> int:
        view, start = memoryview(data).cast("B"), self.tell()
        try:
            if not self.error:
                n = self.transfer(view)
                self._sum(start, view[:n])
                return n
        except OSError as error:
            if not self.defer:
                raise
            self.error = error
        self.seek(start + len(view))
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            if not self.defer:
                raise
            self.error = self.error or error
            return self.tell() if size is None else size

    def transfer(self, view: memoryview) -> int:
        """Write at the file's position, and return the number of bytes that were written."""
        plain = super().write
        return plain(view) if len(view) < LARGE else self._at(os.pwritev, view, plain)

    def _sum(self, start: int, view: memoryview) -> None:
        """Update `sums` for data written at this position; read parts of chunks back.

        Raises OSError if they are not what was written.
        """
        stop = start + len(view)
        for i in range((start - BLOCK) // CHUNK, -(-(stop - BLOCK) // CHUNK)):
            begin = BLOCK + i * CHUNK
            if start <= begin and begin + CHUNK <= stop:
                self.sums[i] = crc32(view[begin - start : begin - start + CHUNK])
            else:
                self.sums.pop(i, None)
                at = max(start, begin)
                part = bytes(view[at - start : begin + CHUNK - start])  # a view is slow to compare
                if os.pread(self.fileno(), len(part), at) != part:
                    raise OSError(errno.EIO, "what was written cannot be read back", str(self.name))

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        return (
            super().readinto(view)
            if len(view) < LARGE
            else self._at(os.preadv, view, super().readinto)
        )

    def _at(self, call: Any, view: memoryview, plain: Any) -> int:
        """Make this transfer at the file's position, without the page cache.

        Calls `plain` if the system, or the file system, does not support that.
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


def new(path: Path) -> io.BufferedRandom:
    """Create a file for writing and reading; it must not exist yet."""
    return io.BufferedRandom(Passing(path, "x+"))


@contextmanager
def deferring(raw: io.BufferedRandom) -> Iterator[None]:
    """Raise the error of a failed write at the end of the block, not within it."""
    file = raw.raw
    assert isinstance(file, Passing)
    file.defer = True
    try:
        yield
        raw.flush()
    except Exception as error:
        raise file.error or error from error.__cause__
    finally:
        file.defer = False
    if file.error:
        raise file.error


def open_existing(path: Path) -> io.BufferedReader:
    """Open a file for reading."""
    return io.BufferedReader(Passing(path, "r"))
