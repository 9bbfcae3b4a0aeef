"""Checksum of an HDF5 file, stored in its user block: it detects any change since writing.

HDF5 tools skip the user block, the 512 bytes before the data. It gives the position where the data
end, and the SHA-256 of the table that follows them there: one CRC-32 for each MiB. So a reader
checks only the data that it reads, and does so before HDF5 gets them, because HDF5 may crash on
damaged data. A CRC-32 detects any damage within 32 neighbouring bits, and of all other damage all
but one case in 4e9. HDF5's own checksums (fletcher32) cover arrays alone, not the structure by
which arrays are found.
"""

import hashlib
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from hpcfed.core.errors import DamagedError
from hpcfed.core.paths import only_regular
from hpcfed.storage.uncached import BLOCK, CHUNK, Passing, open_existing

PLAIN = b"hpcfed crc32 "
LINE = re.compile(PLAIN + rb"(\d{1,18}) ([0-9a-f]{64})\n\0*")
Stamp = tuple[int, int, int] | None  # of a file: inode, bytes and time of its last change


def write_checksum(raw: io.BufferedRandom) -> None:
    """Add the checksum to a file that HDF5 has written, and flush it to the disk."""
    assert isinstance(raw.raw, Passing)
    end = raw.seek(0, os.SEEK_END)
    raw.flush()
    table = checksums(raw, end, raw.raw.sums)
    raw.seek(end)
    raw.write(table)
    raw.seek(0)
    raw.write(text(end, table))
    raw.flush()
    os.fsync(raw.fileno())


def checksums(
    raw: io.BufferedIOBase, end: int, precomputed: Mapping[int, int] | None = None
) -> bytes:
    """Return the table of checksums of a file whose data end at `end`.

    precomputed: checksums of whole chunks, by number; the others are computed from the file.
    """
    memory, precomputed, sums = memoryview(bytearray(min(CHUNK, end))), precomputed or {}, []
    for i, start in enumerate(range(BLOCK, end, CHUNK)):
        size = min(CHUNK, end - start)
        total = precomputed.get(i) if size == CHUNK else None
        if total is None:
            raw.seek(start)
            raw.readinto(memory[:size])
            total = crc32(memory[:size])
        sums.append(total)
    return np.array(sums, dtype="<u4").tobytes()


def text(end: int, table: bytes) -> bytes:
    """Return the user block of a file with that table."""
    digest = hashlib.sha256(b"%d " % end + table).hexdigest()
    return (PLAIN + b"%d %s\n" % (end, digest.encode())).ljust(BLOCK, b"\0")


def identity(path: Path) -> str:
    """Return the digest in the user block, which no other file has.

    Raises OSError, or DamagedError if there is no checksum.
    """
    with open(path, "rb", opener=only_regular) as raw:
        match = LINE.fullmatch(raw.read(BLOCK))
    if not match:
        raise foreign(path)
    return match[2].decode()


def intact(path: Path, block: bytes | None = None) -> bool:
    """Return whether every byte of the file is as it was written.

    block: the user block that it was written with; None: the file's own.
    Reads the whole file. Raises OSError.
    """
    with open_existing(path) as raw:
        if block is not None and raw.read(BLOCK) != block:
            return False
        raw.seek(0)
        try:
            verify_checksum(path, raw, verify_all=True)
        except DamagedError:
            return False
    return True


class Written:
    """A file as it was written, which tells whether it has been changed since. Raises OSError."""

    def __init__(self, path: Path):
        self.path, self.stamp = path, stamp(path)
        with open(path, "rb", opener=only_regular) as raw:
            self.block = raw.read(BLOCK)

    def changed(self, read: bool = False) -> bool:
        """Return whether the file has been changed or removed.

        read: whether to read all of it in any case; otherwise it is as it was written if its size
        and modification time are.
        """
        now = stamp(self.path)
        if now == self.stamp and not read:
            return False
        self.stamp = now
        return not self.equals(self.path)

    def equals(self, path: Path) -> bool:
        """Return whether this file, or a copy of it, holds byte for byte what was written."""
        try:
            return intact(path, self.block)
        except OSError:
            return False


def stamp(path: Path) -> Stamp:
    """Return inode, size and modification time of a file; None if there is none."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


def verify_checksum(path: Path, raw: io.BufferedReader, verify_all: bool) -> io.IOBase | bytes:
    """Return the file for HDF5 to read, after checking its checksum; of up to a MiB, its bytes.

    Raises DamagedError if the checksums, or with `verify_all` any of the data, have changed.
    """
    block, size = raw.read(BLOCK), raw.seek(0, os.SEEK_END)
    match = LINE.fullmatch(block)
    if not match:
        raise foreign(path)
    end = min(int(match[1]), size)
    raw.seek(end)
    length = 4 * len(range(BLOCK, end, CHUNK))
    if size - end != length:  # before the table is read: the file may be large and empty
        raise checksum_error(path)
    table = raw.read()
    if text(end, table) != block or len(table) != length:
        raise checksum_error(path)
    if end <= BLOCK + CHUNK:  # to check one byte is to read all of it
        raw.seek(0)
        content = raw.read(end)
        if checksums(io.BytesIO(content), end) != table:
            raise checksum_error(path)
        return content
    if verify_all and checksums(raw, end) != table:
        raise checksum_error(path)
    return raw if verify_all else Checked(path, raw, end, table)


class Checked(io.RawIOBase):
    """A file with checksums, in which each MiB is checked when it is first read.

    end: the position where the data end.
    table: the checksums of the data.
    Reading raises DamagedError.
    """

    def __init__(self, path: Path, raw: io.BufferedReader, end: int, table: bytes):
        self.path, self.raw, self.end = path, raw, end
        self.table = np.frombuffer(table, "<u4").tolist()
        self.good: set[int] = set()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return (
            self.raw.seek(self.end + offset, os.SEEK_SET)
            if whence == os.SEEK_END
            else self.raw.seek(offset, whence)
        )

    def tell(self) -> int:
        return self.raw.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        start = self.raw.tell()
        size = self.raw.readinto(buffer)
        for i in range(max(0, start - BLOCK) // CHUNK, -(-(start + size - BLOCK) // CHUNK)):
            if i < len(self.table) and i not in self.good:
                self.check(i, start, memoryview(buffer)[:size])
        self.raw.seek(start + size)
        return size

    def check(self, i: int, start: int, read: memoryview) -> None:
        """Check the i-th MiB of the data.

        read: bytes just read from position `start`, which may include all of it.
        """
        begin = BLOCK + i * CHUNK
        last = min(begin + CHUNK, self.end)
        inside = start <= begin and last <= start + len(read)
        if (
            crc32(read[begin - start : last - start] if inside else self.stretch(begin, last))
            != self.table[i]
        ):
            raise checksum_error(self.path)
        self.good.add(i)

    def stretch(self, begin: int, last: int) -> bytes:
        self.raw.seek(begin)
        return self.raw.read(last - begin)


def foreign(path: Path) -> DamagedError:
    return DamagedError(f"{path}: not a file of hpcfed, or its beginning is damaged")


def checksum_error(path: Path) -> DamagedError:
    return DamagedError(
        f"{path}: damaged: the checksum does not fit, so it was cut short or altered"
    )
