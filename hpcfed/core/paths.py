"""Paths that users give: access to regular files only, expansion, and unique names."""

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcfed.core.errors import ConfigError

DEPTH = 200  # maximum parts of a path: Python makes folders by one recursive call for each


def regular(path: Path) -> Path:
    """Return the path if it is that of a regular file.

    Opening a pipe would block, and reading a device such as /dev/zero would never end.
    Raises OSError with the reason: missing, a folder, a loop of links, too long, or no valid name.
    """
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, f"not the name of a file ({error})", str(path)) from error
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "a pipe, socket or device, not a file", str(path))
    return path


def only_regular(path: str, flags: int) -> int:
    """Open a regular file and nothing else; for `open(path, opener=only_regular)`.

    A pipe would wait for its writer. The file that is opened is the one that was checked.
    Raises OSError as `regular`.
    """
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        regular(Path(path))
        raise OSError(errno.EINVAL, "no regular file", path)
    return handle


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises OSError as `regular`, and ValueError if the text is not UTF-8.
    """
    with open(path, encoding="utf-8", opener=only_regular) as file:
        return file.read()


def tail(path: Path, most: int) -> str:
    """Return the last bytes of a text file, at most `most`."""
    with open(path, "rb", opener=only_regular) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read().decode(errors="replace")


@contextmanager
def output(path: Path, what: str) -> Iterator[None]:
    """Make the folder of a file that the block writes.

    Raises ConfigError if the block cannot write to this path, or if it is not a file.
    what: what the user has asked to write, for the message.
    """
    try:
        if os.path.exists(path):
            regular(path)  # a pipe without a reader would never open
        if not os.path.exists(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(
            f"{path}: cannot write {what}: {why}; choose another place with -o"
        ) from error


def glob_folder(folder: Path, pattern: str) -> list[Path]:
    """Return the entries of a folder that match a pattern; none if it is missing or unreadable."""
    try:
        return list(folder.glob(pattern))
    except (OSError, ValueError):
        return []


def expand_path(value: Any) -> Any:
    """Return a path from a job, before validation, with ~ and ~NAME expanded.

    Raises ValueError for a text that is not a valid path. An empty text is refused too: it would
    mean the current folder, and usually comes from an unset variable of a shell.
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
    """Return a name for each path: its shortest ending that no other path has.

    Equal paths have equal names.
    """
    ends = Counter(path.parts[-n:] for path in set(paths) for n in range(1, len(path.parts) + 1))

    def name(path: Path) -> str:
        unique = (n for n in range(1, len(path.parts)) if ends[path.parts[-n:]] == 1)
        return str(Path(*path.parts[-next(unique, len(path.parts)) :]))

    return list(map(name, paths))
