"""Errors for users: each has one message that says what, where, which value, and what to do.

`hpcfed.main` and `hpcfed.cli` print the message of an `HpcfedError` without a traceback and exit
with status 2, as they do for errors in users' files (`user_code`) and lack of memory. After a
`RankLost` the run continues without that rank. Any other exception is a bug of hpcfed and shows its
traceback.
"""

import errno
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TypeVar

import numpy as np

WARNING = "hpcfed: warning: "  # before each warning on stderr
FEW = 12  # most names that a message lists in full
# maximum lines and characters per line of a message; only users' input makes it longer
LINES, WIDTH = 60, 2000


class HpcfedError(Exception):
    """Base of all errors that a user can correct.

    everywhere: all ranks raise it, none waits for another.
    again: the same command may succeed later, for instance when the disk has room; the exit status
    then is 75.
    """

    everywhere = False
    again = False

    def __str__(self) -> str:
        """Return the message with its notes (`add_note`), which are lines of their own."""
        return "\n".join([super().__str__(), *getattr(self, "__notes__", ())])


Failure = TypeVar("Failure", bound=HpcfedError)


def everywhere(error: Failure) -> Failure:
    """Return the error marked as one that all ranks raise."""
    error.everywhere = True
    return error


class ConfigError(HpcfedError):
    """A job that cannot be run as it is written."""


class DataError(HpcfedError):
    """Missing, damaged or insufficient data."""


class DivergedError(HpcfedError):
    """A loss, weight or upload that is nan or infinite.

    client: id of the client it belongs to, or None if that is unknown.
    """

    client: int | None = None


class CheckpointError(HpcfedError):
    """A checkpoint or result file that cannot be used, or belongs to another job."""


class DamagedError(CheckpointError):
    """A file that is missing, altered or unreadable."""


class AbsentError(DamagedError):
    """A file or folder that does not exist."""


class WriteError(CheckpointError):
    """A file that cannot be written now: no room, no permission, or no such file system."""

    again = True


class StoppedError(HpcfedError):
    """A run that was stopped before its end, after all completed work was saved."""

    again = True


# errors that repetition does not cure: no permission, no such place
FINAL = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EEXIST,
    errno.EINVAL,
)


def may_pass(error: OSError) -> bool:
    """Return whether an operation that the system refused may succeed later.

    A full or absent disk may recover; missing permission does not.
    """
    return error.errno not in FINAL


def printable(text: object) -> str:
    """Return text from outside as one line that a terminal shows unchanged.

    Control characters are escaped: newlines, escape sequences, marks that change the direction of
    text, and bytes that no encoding has.
    """
    line = str(text)
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def plain(text: object, names: Iterable[object] = ()) -> str:
    """Return text of several lines with each line `printable`; tabs stay.

    names: strings in the text whose newlines do not end a line, such as names of folders.
    """
    escaped = str(text)
    for name in filter(None, map(str, names)):
        if not name.isprintable():
            escaped = escaped.replace(name, printable(name))
    lines = escaped.split("\n")
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in lines)


def format_error(error: object, names: Iterable[object] = ()) -> str:
    """Return the message as it is printed, shortened and with unprintable characters escaped.

    names: as in `plain`.
    """
    lines = plain(error, names).replace("\t", r"\t").split("\n")
    shown = (
        lines
        if len(lines) <= LINES
        else [*lines[:LINES], f"... and {len(lines) - LINES} more lines"]
    )
    short = (
        line if len(line) <= WIDTH else f"{line[: WIDTH - 300]} ... {line[-200:]}" for line in shown
    )
    return "\n".join(short)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def escape_unprintable() -> None:
    """Make stdout escape characters that its encoding lacks, such as bytes of a file's name."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


class RankLost(Exception):
    """The death of a rank.

    Every other rank raises this in its next collective; see engine/fault_tolerance/recover.py.
    """


def first_bad(values: np.ndarray, bad: np.ndarray, where: str, help: str) -> None:
    """Raise DataError for the first of `values` where `bad` is true, with its index."""
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        at = index[0] if len(index) == 1 else list(index)
        raise DataError(f"{where}: value {values[index]} at index {at}; {help}")


def unknown(what: str, name: str, valid: Iterable[str], see: str = "") -> str:
    """Return the message for an unknown name, with the nearest known ones.

    If few names are known, all of them are listed.
    see: the command that lists all names, if they are many.
    """
    valid = sorted(valid)
    near = nearest(name, valid)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    if len(valid) <= FEW:
        return f"no {what} {name!r}{hint}\n  valid: {', '.join(valid)}"
    return f"no {what} {name!r}{hint}" + (f"\n  all names: {see}" if see else "")


def nearest(name: str, valid: Iterable[str]) -> list[str]:
    """Return up to three of the known names that are most similar to this one, ignoring case."""
    by_case: dict[str, str] = {}
    for other in valid:
        by_case.setdefault(other.lower(), other)
    return [by_case[other] for other in get_close_matches(name.lower(), by_case, n=3)]
