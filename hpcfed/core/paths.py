"""Paths from users' hands: what is read or written is a file, and nothing else; and names for
them.
"""

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcfed.core.errors import ConfigError

DEPTH = 200  # parts of a path: Python makes folders by calling itself for each


def regular(path: Path) -> Path:
    """The path, if it is that of a file.

    A pipe would never open, a device such as /dev/zero never end.

    Raises OSError with its reason: missing, a folder, a loop of links, too long, no name at all.
    """
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # a NUL
        raise OSError(errno.EINVAL, f"not the name of a file ({error})", str(path)) from error
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "a pipe, socket or device, not a file", str(path))
    return path


def only_regular(path: str, flags: int) -> int:
    """For `open(path, opener=only_regular)`: opens a file, and nothing else; a pipe would wait for
    its writer.

    Raises OSError as `regular`. What is opened is what was checked.
    """
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        regular(Path(path))
        raise OSError(errno.EINVAL, "no regular file", path)
    return handle


def read_text(path: Path) -> str:
    """The text of a file. OSError as `regular`, ValueError for no UTF-8."""
    with open(path, encoding="utf-8", opener=only_regular) as file:
        return file.read()


def tail(path: Path, most: int) -> str:
    """The end of a text file, so many bytes at most."""
    with open(path, "rb", opener=only_regular) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read().decode(errors="replace")


@contextmanager
def output(path: Path, what: str) -> Iterator[None]:
    """Inside, what a user has asked for is written to this path.

    ConfigError where it cannot be, or is no file.
    """
    try:
        if os.path.exists(path):
            regular(path)  # a pipe without a reader would never open
        yield
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(
            f"{path}: cannot write {what}: {why}; choose another place with -o"
        ) from error


def glob_folder(folder: Path, pattern: str) -> list[Path]:
    """What is in a folder under such names.

    Nothing where there is no such folder, or it may not be read.
    """
    try:
        return list(folder.glob(pattern))
    except (OSError, ValueError):
        return []


def expand_path(value: Any) -> Any:
    """A path as a job gives it, before it is checked, with ~ and ~NAME as the shell has them.

    ValueError where it cannot name anything. The empty one is refused too: it would mean the
    current folder, and comes from an unset variable of a shell.
    """
    if not isinstance(value, str):
        return value
    if not value or "\0" in value:
        raise ValueError(f"a path has at least one character, and no NUL, got {value!r}")
    full = os.path.expanduser(value)
    if full.startswith("~"):
        raise ValueError(
            f"{value!r}: there is no such user; write ./{value} for a file of that name"
        )
    if len(Path(full).parts) > DEPTH:
        raise ValueError(f"a path has at most {DEPTH} parts, got {len(Path(full).parts)}")
    return full


def unique_names(paths: Sequence[Path]) -> list[str]:
    """A name for each path: its last part, and as many before it as it takes to tell it from all
    others.

    Equal paths have equal names.
    """
    ends = Counter(path.parts[-n:] for path in set(paths) for n in range(1, len(path.parts) + 1))

    def name(path: Path) -> str:
        own = (n for n in range(1, len(path.parts)) if ends[path.parts[-n:]] == 1)
        return str(Path(*path.parts[-next(own, len(path.parts)) :]))

    return list(map(name, paths))
