"""Files that pass through memory: what is in them is what was written, and the sums kept meanwhile
are theirs.
"""

import errno
import os
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from hpcfed.storage import uncached
from hpcfed.storage.uncached import BLOCK, CHUNK, Passing

SIZES = (1, 511, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7)


def written(path: Path) -> tuple[bytes, dict[int, int]]:
    """Pieces of all sizes at places here and there, some over others; the bytes that should be
    there, and the sums.
    """
    g, content = np.random.default_rng(0), bytearray(8 * CHUNK)
    with uncached.new(path) as file:
        file.write(content)
        for start in (BLOCK, 0, BLOCK + CHUNK, 3 * CHUNK, BLOCK + 2 * CHUNK + 5):
            for size in SIZES:
                piece = g.bytes(size)
                file.seek(start)
                file.write(piece)
                content[start : start + size] = piece
        file.flush()
        return bytes(content), file.raw.sums


def test_written_bytes_are_on_disk_and_checksums_of_chunks_are_right(tmp_path):
    content, sums = written(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == content
    assert sums == {i: crc32(content[BLOCK + i * CHUNK : BLOCK + (i + 1) * CHUNK]) for i in sums}
    assert len(sums) >= 2
    with uncached.open_existing(tmp_path / "a") as file:
        assert file.read() == content


@pytest.mark.parametrize(
    "number", uncached.UNKNOWN, ids=[errno.errorcode[n] for n in uncached.UNKNOWN]
)
def test_without_the_systems_flag_the_file_is_written_as_usual(tmp_path, monkeypatch, number):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwritev", refuse)
    monkeypatch.setattr(os, "preadv", refuse)
    content, _ = written(tmp_path / "a")
    memory = bytearray(len(content))
    with Passing(tmp_path / "a", "r") as file:
        assert file.readinto(memory) == len(content) and memory == content


def test_a_full_disk_is_not_taken_for_that(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space left"), Passing(tmp_path / "a", "x+") as file:
        file.write(bytes(CHUNK))
