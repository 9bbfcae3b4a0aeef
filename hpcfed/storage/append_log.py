"""Blocks of rounds that are added to a file one after the other, each in time that does not grow
with the file.

The journal goes on where another file ends: it begins with that file's seal, so that nobody reads
it after a newer file has taken the place of that one. A block is a line of JSON that names its
arrays, and their bytes (an NPZ takes 40 times as long to read), behind its first round, length and
SHA-256. These, and the beginning of the journal, have a CRC-32 of their own: so what a killed
writer left, a last block that is cut short, is told from damage. It is not read, and the next block
is written over it.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from isal.isal_zlib import crc32

from hpcfed.core.errors import DamagedError
from hpcfed.core.paths import only_regular
from hpcfed.core.safe_read import parse_json
from hpcfed.storage.atomic import convert_write_errors
from hpcfed.storage.checksum import BLOCK, PLAIN, WHOLE, checksum_error, intact
from hpcfed.storage.columns import Columns
from hpcfed.storage.untrusted import NUMBERS

MARK = b"hpcfed journal 2\n"
SUM = struct.Struct("<I")  # CRC-32 of the bytes before it
START = len(MARK) + BLOCK + SUM.size  # bytes of the beginning: mark, and seal of the other file
HEAD = struct.Struct("<QQ32s")  # the first round of a block, its bytes, and their SHA-256
Stamp = tuple[int, int, int] | None  # of a file: inode, bytes and time of its last change


class Journal:
    """Takes blocks. path: where; after: the file that it goes on from, as it is now."""

    def __init__(self, path: Path, after: Path):
        self.path, self.after, self.seal = path, after, seal(after)
        self.end = 0  # of the last whole block
        self.heads = hashlib.sha256()  # of the heads of all blocks, which have the data's checksums
        self.stamps = [stamp(after), stamp(path)]

    def fits(self) -> bool:
        """Whether both files are as they were written.

        Size and time of the last change decide where they are as they were; otherwise all is read.
        """
        now = [stamp(self.after), stamp(self.path)]
        if now != self.stamps:
            if not self.whole(self.after, self.path):
                return False
            self.stamps = now
        return True

    def whole(self, after: Path, path: Path) -> bool:
        """Whether these files, the own ones or copies, hold byte for byte what was written.

        All is read.
        """
        try:
            return intact(after, self.seal) and (
                self._intact(path) if self.end else not any(True for _ in blocks(path, after))
            )
        except (OSError, DamagedError):
            return False

    def _intact(self, path: Path) -> bool:
        with open(path, "rb") as file:
            heads, right = hashlib.sha256(), file.read(START) == start(self.seal)
            while right and file.tell() < self.end:
                head = file.read(HEAD.size)
                heads.update(head)
                right = read_block(file, path, head + file.read(SUM.size)) is not None
            return right and file.tell() == self.end and heads.digest() == self.heads.digest()

    def append(self, first: int, block: Columns) -> None:
        """Add a block, whose first round is `first`, and flush it to the disk.

        WriteError where that fails.
        """
        data = pack(block)
        head = HEAD.pack(first, len(data), hashlib.sha256(data).digest())
        with convert_write_errors(self.path), open(self.path, "r+b" if self.end else "wb") as file:
            file.seek(self.end)
            file.truncate()  # first: then what a kill leaves is cut short, and nothing else
            file.writelines([b"" if self.end else start(self.seal), with_sum(head), data])
            file.flush()
            os.fsync(file.fileno())
            self.end = file.tell()
        self.heads.update(head)
        self.stamps[1] = stamp(self.path)


def blocks(path: Path, after: Path) -> Iterator[tuple[int, Columns]]:
    """First round and columns of each whole block at that path, if there is a journal that goes on
    from `after`.

    Raises DamagedError where bytes are not as they were written; what comes before them has been
    given then.
    """
    if not path.is_file():
        return
    with open(path, "rb", opener=only_regular) as file:
        beginning = file.read(START)
        if beginning.startswith((PLAIN, WHOLE)):
            file.seek(BLOCK)
            yield from _old_blocks(file, beginning[:BLOCK] == seal(after))
            return
        if len(beginning) < START and MARK.startswith(beginning[: len(MARK)]):
            return  # cut short
        if beginning != with_sum(beginning[: -SUM.size]) or not beginning.startswith(MARK):
            raise checksum_error(path)
        if beginning != start(seal(after)):
            return  # of a file that has been replaced
        while len(head := file.read(HEAD.size + SUM.size)) == HEAD.size + SUM.size:
            data = read_block(file, path, head)
            if data is None:
                return
            yield HEAD.unpack(head[: HEAD.size])[0], unpack(data)


def read_block(file: BinaryIO, path: Path, head: bytes) -> bytes | None:
    """The data of a block, None where they are cut short.

    head: what was read before them. DamagedError.
    """
    if len(head) < HEAD.size + SUM.size:
        return None
    if head != with_sum(head[: HEAD.size]):
        raise checksum_error(path)
    _, size, digest = HEAD.unpack(head[: HEAD.size])
    if size > os.fstat(file.fileno()).st_size - file.tell():
        return None
    data = file.read(size)
    if hashlib.sha256(data).digest() != digest:
        raise checksum_error(path)
    return data


def _old_blocks(file: BinaryIO, ours: bool) -> Iterator[tuple[int, Columns]]:
    """The blocks of a journal from before heads had checksums, up to the first that is not
    whole.
    """
    while ours and len(head := file.read(HEAD.size)) == HEAD.size:
        first, size, digest = HEAD.unpack(head)
        left = os.fstat(file.fileno()).st_size - file.tell()
        data = file.read(size) if size <= left else b""
        if hashlib.sha256(data).digest() != digest:
            return
        yield first, unpack(data)


def start(seal: bytes) -> bytes:
    """The beginning of a journal that goes on from the file with this seal."""
    return with_sum(MARK + seal)


def with_sum(data: bytes) -> bytes:
    """These bytes, and their CRC-32."""
    return data + SUM.pack(crc32(data))


def pack(block: Columns) -> bytes:
    """Arrays as bytes."""
    about = [(name, array.dtype.str, array.shape) for name, array in block.items()]
    return b"".join(
        [json.dumps(about).encode(), b"\n", *(array.tobytes() for array in block.values())]
    )


def unpack(data: bytes) -> Columns:
    """What `pack` packed. Raises DamagedError or ValueError for what it would not have made."""
    at, block = data.index(b"\n") + 1, {}
    for name, kind, shape in parse_json(data[:at], "journal"):
        if not isinstance(name, str) or np.dtype(kind).kind not in NUMBERS:
            raise DamagedError(f"journal: a column {name!r} of type {kind!r}")
        if not shape or not all(type(n) is int and n >= 0 for n in shape) or shape[0] < 1:
            raise DamagedError(f"journal: column {name!r} has the shape {shape}")
        size = math.prod(shape)
        block[name] = np.frombuffer(data, kind, size, at).reshape(shape)
        at += block[name].nbytes
    if not block or len({len(column) for column in block.values()}) > 1:
        raise DamagedError("journal: a block whose columns have no rounds, or not the same")
    return block


def seal(path: Path) -> bytes:
    """What names a sealed file as it is now: the block before its data, which has its checksum."""
    with open(path, "rb", opener=only_regular) as file:
        return file.read(BLOCK)


def stamp(path: Path) -> Stamp:
    """What changes when a file is written to or replaced; None where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
