"""File calls of a run that fail, are cut short or are lost: the library of filecalls.c, compiled
when it is first used, and what it is told.
"""

from __future__ import annotations

import atexit
import errno
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from numpy.random import Generator

SOURCE = Path(__file__).with_name("filecalls.c")


@dataclass(frozen=True)
class Calls:
    """Calls of which one is struck.

    kinds, mode: as in filecalls.c.  errors: one of them is what a failing call returns.  most: the
    struck call is one of so many, counted from the start of the process.
    """

    kinds: str
    mode: str
    errors: tuple[int, ...] = (errno.EIO,)
    most: int = 60

    def words(self, run: Path, ranks: int, draw: Generator) -> list[str]:
        """What stands before a rank's command, so that a call of one rank is struck."""
        calls = {
            "LD_PRELOAD": library(),
            "CALLS_KINDS": self.kinds,
            "CALLS_BELOW": run,
            "CALLS_AT": draw.integers(1, self.most + 1),
            "CALLS_MODE": self.mode,
            "CALLS_ERRNO": self.errors[int(draw.integers(len(self.errors)))],
            "CALLS_RANK": draw.integers(ranks),
            "CALLS_LOG": run.with_name("struck"),
        }
        return ["env", *(f"{name}={value}" for name, value in calls.items())]


KINDS = {  # by name: what it is in words, and the calls
    "write": (
        "a write that fails",
        Calls("write,fsync,truncate", "fail", (errno.EIO, errno.ENOSPC, errno.EDQUOT)),
    ),
    "write-short": ("a write of half its bytes", Calls("write", "short")),
    "write-lost": ("a write that is lost, and counts as done", Calls("write", "lose", most=200)),
    "open": (
        "a file that cannot be opened",
        Calls("openw,openr", "fail", (errno.EIO, errno.ESTALE, errno.EMFILE), 150),
    ),
    "read": ("a read that fails", Calls("read", "fail", (errno.EIO, errno.ESTALE))),
    "read-flip": ("a read with a flipped bit", Calls("read", "flip")),
    "name": (
        "a file or folder that cannot be made, renamed or removed",
        Calls("rename,link,unlink,mkdir", "fail", (errno.EIO, errno.EBUSY, errno.ESTALE)),
    ),
    "name-deaf": (
        "the same, done though it is said to have failed",
        Calls("rename,link,unlink,mkdir", "deaf", (errno.EIO, errno.EEXIST, errno.ENOENT)),
    ),
    "look": (
        "a file or folder that cannot be looked at",
        Calls("stat,opendir,utime", "fail", (errno.EIO, errno.ESTALE), 200),
    ),
}


@cache
def library() -> Path:
    """The path of the compiled library, in a folder that goes when this process ends."""
    folder = tempfile.mkdtemp(prefix="hpcfed-calls-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "filecalls.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, SOURCE, "-ldl"], check=True)
    return path


def compiler() -> bool:
    """Whether the library can be compiled here."""
    return bool(shutil.which("cc"))
