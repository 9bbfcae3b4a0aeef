"""What can go wrong for a user: each error is one message that says what, where, which value, what to do.

`hpcfed.main` and `hpcfed.cli` print the message of an `HpcfedError` without a traceback and exit with
status 2. A `RankLost` is met by going on without that rank. Any other exception is a bug of hpcfed and shows its
traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class HpcfedError(Exception):
    """Base of all errors that a user can mend. everywhere: all ranks raise it, none waits for another."""

    everywhere = False


class ConfigError(HpcfedError):
    """A job that cannot be run as it is written."""


class DataError(HpcfedError):
    """Missing, damaged or too little data."""


class DivergedError(HpcfedError):
    """A loss, weight or upload that is nan or infinite."""


class CheckpointError(HpcfedError):
    """A checkpoint or result file that is damaged, or belongs to another job."""


class RankLost(Exception):
    """A rank has died. Every other rank raises this, each in its next collective; see engine/recover.py."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that is not among the known ones, with the nearest valid ones first."""
    known = sorted(known)
    near = get_close_matches(name, known, n=2)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"no {what} {name!r}{hint}\n  valid: {', '.join(known)}"
