"""What can go wrong for a user: each error is one message that says what, where, which value, what
to do.

`hpcfed.main` and `hpcfed.cli` print the message of an `HpcfedError` without a traceback and exit
with status 2. A `RankLost` is met by going on without that rank. Any other exception is a bug of
hpcfed and shows its traceback.
"""

import sys
from collections.abc import Iterable
from difflib import get_close_matches

LINES, WIDTH = 60, 2000  # of a message; what is longer repeats what a user gave


class HpcfedError(Exception):
    """Base of all errors that a user can mend. everywhere: all ranks raise it, none waits for
    another.
    """

    everywhere = False


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
    """A file that is not as it was written, or cannot be read."""


class WriteError(CheckpointError):
    """A file that the disk does not take now: no room, no permission, no such file system."""


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


def told(error: object, names: Iterable[object] = ()) -> str:
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


def first_line(error: Exception) -> str:
    """The first line of a message; of an error without one its kind."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def escape_unprintable() -> None:
    """From now on what stdout's encoding lacks, such as bytes of a file's name, is printed as
    escapes.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


class RankLost(Exception):
    """A rank has died. Every other rank raises this, each in its next collective; see
    engine/recover.py.
    """


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that is not among the known ones, with the nearest valid ones
    first.
    """
    known = sorted(known)
    near = get_close_matches(name, known, n=2)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"no {what} {name!r}{hint}\n  valid: {', '.join(known)}"
