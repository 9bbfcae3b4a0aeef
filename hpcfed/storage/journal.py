"""Blocks of rounds that are added to a file one after the other, each in time that does not grow
with the file.

The journal goes on where another one ends: its first line names that file's seal, so that nobody
reads it after a newer file has taken the place of that one. A block is a line of JSON that names
its arrays, and their bytes (an NPZ takes 40 times as long to read), behind its first round, length
and SHA-256. What a killed writer left of a block is not read, and the next block is written over
it.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcfed.content import parse_json
from hpcfed.errors import DamagedError
from hpcfed.paths import only_regular
from hpcfed.storage.atomic import writing
from hpcfed.storage.columns import Columns
from hpcfed.storage.seal import BLOCK
from hpcfed.storage.untrusted import NUMBERS

HEAD = struct.Struct("<QQ32s")  # the first round of a block, its bytes, and their SHA-256


class Journal:
    """Takes blocks. path: where; after: the file that it goes on from, as it is now."""

    def __init__(self, path: Path, after: Path):
        self.path, self.after, self.seal = path, after, seal(after)
        self.end = 0  # of the last whole block

    def fits(self) -> bool:
        """Whether the file that it goes on from is still there, and what was added."""
        try:
            return seal(self.after) == self.seal and (
                not self.end or self.path.stat().st_size >= self.end
            )
        except OSError:
            return False

    def append(self, first: int, block: Columns) -> None:
        """Add a block, whose first round is `first`, and flush it to the disk; WriteError where
        that fails.
        """
        data = pack(block)
        head = b"" if self.end else self.seal
        with writing(self.path), open(self.path, "r+b" if self.end else "wb") as file:
            file.seek(self.end)
            file.writelines(
                [head, HEAD.pack(first, len(data), hashlib.sha256(data).digest()), data]
            )
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
            self.end = file.tell()


def blocks(path: Path, after: Path) -> Iterator[tuple[int, Columns]]:
    """First round and columns of each whole block at that path, if there is a journal that goes on
    from `after`.
    """
    if not path.is_file():
        return
    with open(path, "rb", opener=only_regular) as file:
        if file.read(BLOCK) != seal(after):
            return
        while len(head := file.read(HEAD.size)) == HEAD.size:
            first, size, digest = HEAD.unpack(head)
            left = os.fstat(file.fileno()).st_size - file.tell()
            data = file.read(size) if size <= left else b""
            if hashlib.sha256(data).digest() != digest:
                return
            yield first, unpack(data)


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
