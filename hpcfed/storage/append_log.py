"""Append-only log (journal) of rounds; the time to append a block does not grow with the file.

The journal continues another file: it begins with the user block of that file (`checksum`), so it
is ignored once a newer file has replaced that one. A block is a line of JSON that names its arrays,
and their bytes (an NPZ takes 40 times as long to read), preceded by its first round, length and
SHA-256. These, and the beginning of the journal, have a CRC-32 of their own. So a last block that a
killed writer left incomplete can be distinguished from damage: it is not read, and the next block
overwrites it.
"""

import errno
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
from hpcfed.storage.checksum import BLOCK, checksum_error, intact
from hpcfed.storage.columns import Columns, check_columns, length
from hpcfed.storage.untrusted import NUMBERS

MARK = b"hpcfed journal 2\n"
SUM = struct.Struct("<I")  # CRC-32 of the bytes before it
START = len(MARK) + BLOCK + SUM.size  # bytes of the beginning: mark, other file's user block
HEAD = struct.Struct("<QQ32s")  # the first round of a block, its bytes, and their SHA-256
Stamp = tuple[int, int, int] | None  # of a file: inode, bytes and time of its last change


class Journal:
    """Writer of a journal. path: its file; after: the file that it continues, as it is now."""

    def __init__(self, path: Path, after: Path):
        self.path, self.after, self.block = path, after, user_block(after)
        self.end = 0  # of the last whole block
        self.heads = hashlib.sha256()  # of the heads of all blocks, which have the data's checksums
        self.stamps = [stamp(after), stamp(path)]

    def fits(self) -> bool:
        """Return whether both files are as they were written.

        Size and modification time decide if they are unchanged; otherwise both files are read.
        """
        now = [stamp(self.after), stamp(self.path)]
        if now != self.stamps:
            if not self.whole(self.after, self.path):
                return False
            self.stamps = now
        return True

    def whole(self, after: Path, path: Path) -> bool:
        """Return whether these files hold byte for byte what was written; reads all of them.

        They are the journal's own files or copies of them.
        """
        try:
            return intact(after, self.block) and (
                self._intact(path) if self.end else not any(True for _ in blocks(path, after))
            )
        except (OSError, DamagedError):
            return False

    def _intact(self, path: Path) -> bool:
        with open(path, "rb") as file:
            heads, right = hashlib.sha256(), file.read(START) == start(self.block)
            while right and file.tell() < self.end:
                head = file.read(HEAD.size)
                heads.update(head)
                right = read_block(file, path, head + file.read(SUM.size)) is not None
            return right and file.tell() == self.end and heads.digest() == self.heads.digest()

    def append(self, first_round: int, block: Columns) -> None:
        """Append a block, whose first round is `first_round`, and flush it to the disk.

        Raises WriteError if that fails.
        """
        data = pack(block)
        head = HEAD.pack(first_round, len(data), hashlib.sha256(data).digest())
        with convert_write_errors(self.path), open(self.path, "r+b" if self.end else "w+b") as file:
            file.seek(self.end)
            file.truncate()  # first, so that a killed writer leaves nothing but a short block
            written = b"".join([b"" if self.end else start(self.block), with_sum(head), data])
            file.write(written)
            file.flush()
            os.fsync(file.fileno())
            file.seek(self.end)
            if file.read() != written:
                raise OSError(errno.EIO, "what was written cannot be read back", str(self.path))
            self.end = file.tell()
        self.heads.update(head)
        self.stamps[1] = stamp(self.path)


def blocks(path: Path, after: Path) -> Iterator[tuple[int, Columns]]:
    """Yield the first round and the columns of each complete block of a journal.

    Yields nothing if there is no journal at `path` that continues the file `after`. Raises
    DamagedError if bytes have changed, after the blocks before them.
    """
    if not path.is_file():
        return
    with open(path, "rb", opener=only_regular) as file:
        beginning = file.read(START)
        if len(beginning) < START and MARK.startswith(beginning[: len(MARK)]):
            return  # cut short
        if beginning != with_sum(beginning[: -SUM.size]) or not beginning.startswith(MARK):
            raise checksum_error(path)
        if beginning != start(user_block(after)):
            return  # of a file that has been replaced
        while len(head := file.read(HEAD.size + SUM.size)) == HEAD.size + SUM.size:
            data = read_block(file, path, head)
            if data is None:
                return
            yield HEAD.unpack(head[: HEAD.size])[0], unpack(data)


def read_block(file: BinaryIO, path: Path, head: bytes) -> bytes | None:
    """Return the data of a block, None if it is cut short.

    head: the bytes before the data. Raises DamagedError if head or data have changed.
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


def start(block: bytes) -> bytes:
    """Return the beginning of a journal that continues the file with this user block."""
    return with_sum(MARK + block)


def with_sum(data: bytes) -> bytes:
    """Return these bytes followed by their CRC-32."""
    return data + SUM.pack(crc32(data))


def pack(block: Columns) -> bytes:
    """Return the block's arrays as bytes."""
    about = [(name, array.dtype.str, array.shape) for name, array in block.items()]
    return b"".join(
        [json.dumps(about).encode(), b"\n", *(array.tobytes() for array in block.values())]
    )


def unpack(data: bytes) -> Columns:
    """Return the arrays that `pack` packed. Raises DamagedError or ValueError for other bytes."""
    at, block = data.index(b"\n") + 1, {}
    for name, kind, shape in parse_json(data[:at], "journal"):
        if not isinstance(name, str) or np.dtype(kind).kind not in NUMBERS:
            raise DamagedError(f"journal: a column {name!r} of type {kind!r}")
        if not shape or not all(type(n) is int and n >= 0 for n in shape):
            raise DamagedError(f"journal: column {name!r} has the shape {shape}")
        size = math.prod(shape)
        block[name] = np.frombuffer(data, kind, size, at).reshape(shape)
        at += block[name].nbytes
    if not block or not (rounds := length(block)):
        raise DamagedError("journal: a block without rounds")
    check_columns(block, rounds)
    return block


def user_block(path: Path) -> bytes:
    """Return the user block of a file, which identifies its present contents by their checksum."""
    with open(path, "rb", opener=only_regular) as file:
        return file.read(BLOCK)


def stamp(path: Path) -> Stamp:
    """Return inode, size and modification time of a file; None if there is none."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns
