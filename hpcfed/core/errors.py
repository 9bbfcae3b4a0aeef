"""What can go wrong for a user: each error is one message that says what, where, which value, what
to do.

`hpcfed.main` and `hpcfed.cli` print the message of an `HpcfedError` without a traceback and exit
with status 2. A `RankLost` is met by going on without that rank. Any other exception is a bug of
hpcfed and shows its traceback.
"""

import errno
import sys
from collections.abc import Iterable
from difflib import get_close_matches

FEW = 12  # names that a message lists all
LINES, WIDTH = 60, 2000  # of a message; what is longer repeats what a user gave


class HpcfedError(Exception):
    """Base of all errors that a user can mend.

    everywhere: all ranks raise it, none waits for another.  again: the same may go well later, when
    there is room on a disk, say; the exit status then is 75.
    """

    everywhere = False
    again = False


class ConfigError(HpcfedError):
    """A job that cannot be run as it is written."""


class DataError(HpcfedError):
    """Missing, damaged or too little data."""


class DivergedError(HpcfedError):
    """A loss, weight or upload that is nan or infinite. client: whose, where it is known."""

    client: int | None = None


class CheckpointError(HpcfedError):
    """A checkpoint or result file that cannot be used, or belongs to another job."""


class DamagedError(CheckpointError):
    """A file that is missing, is not as it was written, or cannot be read."""


class AbsentError(DamagedError):
    """A file or folder that is not there."""


class WriteError(CheckpointError):
    """A file that the disk does not take now: no room, no permission, no such file system."""

    again = True


class StoppedError(HpcfedError):
    """A run that was stopped before its end, with all saved that was done."""

    again = True


# what a disk refuses for ever: no permission, no such place
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
    """Whether what the system refused may go well later: a full or absent disk, not a permission
    that lacks.
    """
    return error.errno not in FINAL


def printable(text: object) -> str:
    """A name or a sentence from outside in one line that a terminal shows as it is.

    What it would obey is escaped: newlines, escape sequences, marks that turn the direction of
    reading, bytes that no encoding has.
    """
    line = str(text)
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def plain(text: object, names: Iterable[object] = ()) -> str:
    """Text of several lines as it is printed: each is `printable`, but that tabs stay.

    names: that it may contain and whose newlines are no ends of lines, such as those of folders.
    """
    whole = str(text)
    for name in filter(None, map(str, names)):
        if not name.isprintable():
            whole = whole.replace(name, printable(name))
    lines = whole.split("\n")
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in lines)


def format_error(error: object, names: Iterable[object] = ()) -> str:
    """The message as it is printed: what a user gave at length is shortened, what cannot be printed
    escaped.

    names: as `plain` has them.
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
    """The first line of a message; of an error without one its kind."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def escape_unprintable() -> None:
    """From now on what stdout's encoding lacks, such as bytes of a file's name, is printed as
    escapes.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


class RankLost(Exception):
    """A rank has died.

    Every other rank raises this, each in its next collective; see engine/recover.py.
    """


def unknown(what: str, name: str, known: Iterable[str], see: str = "") -> str:
    """The sentence for a name that is not among the known ones, with the nearest ones.

    Of few names all. see: what lists all, where they are many.
    """
    known = sorted(known)
    near = nearest(name, known)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    if len(known) <= FEW:
        return f"no {what} {name!r}{hint}\n  valid: {', '.join(known)}"
    return f"no {what} {name!r}{hint}" + (f"\n  all names: {see}" if see else "")


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of these names that are most like this one, whatever the case of letters."""
    by_case: dict[str, str] = {}
    for other in known:
        by_case.setdefault(other.lower(), other)
    return [by_case[other] for other in get_close_matches(name.lower(), by_case, n=3)]
