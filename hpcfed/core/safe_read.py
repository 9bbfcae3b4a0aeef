"""Reading of untrusted files: JSON with bounds, and errors as one message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcfed.core import user_code
from hpcfed.core.errors import DamagedError, first_line

NESTED = 32  # maximum levels of nested tables and lists
TEXT = 2**26  # maximum bytes of a JSON text
# exceptions of h5py, numpy and json for unexpected content
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)


@contextmanager
def convert_read_errors(path: Path) -> Iterator[None]:
    """Convert errors of libraries that read a file's content to DamagedError."""
    try:
        yield
    except UNREADABLE as error:
        what = str(error) or type(error).__name__
        raise DamagedError(f"{path}: holds what hpcfed does not write: {what}") from error


# exceptions of our own code for values of unexpected types or shapes
UNFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@contextmanager
def convert_unfit_errors(path: Path) -> Iterator[None]:
    """Convert errors from restoring a run to DamagedError: the file does not fit such a run.

    A lack of memory is not converted.
    """
    try:
        yield
    except UNFIT as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's, a RuntimeError
            raise
        reason = f"{type(error).__name__}: {first_line(error)}"
        if theirs := user_code.frames(error):  # their method may be wrong, and not the file
            reason += f", in {user_code.place_of(theirs[-1])}, {theirs[-1].name}"
        raise DamagedError(
            f"{path}: holds what this job does not save, or another version of hpcfed did "
            f"({reason})"
        ) from error


class Table(dict[str, Any]):
    """A table of a file; a missing name raises DamagedError instead of KeyError.

    where: names the file, or the place in it.
    """

    __slots__ = ("where",)

    def __init__(self, values: Mapping[str, Any], where: object):
        super().__init__(values)
        self.where = where

    def __missing__(self, key: str) -> Any:
        raise DamagedError(f"{self.where}: does not say {key!r}, as files of hpcfed do")


def parse_json(text: str | bytes, what: str) -> Any:
    """Return the value of a JSON text, with its tables as `Table`.

    what: names the text in messages.
    Raises DamagedError for a text that is not JSON, too long, or nested too deeply.
    """
    if len(text) > TEXT:
        raise DamagedError(f"{what}: a text of {len(text)} bytes; at most {TEXT} are read")
    try:
        value = json.loads(text, object_hook=lambda values: Table(values, what))
    except RecursionError as error:
        raise DamagedError(f"{what}: nested deeper than {NESTED} levels") from error
    except ValueError as error:
        raise DamagedError(f"{what}: no JSON text: {error}") from error
    check_depth(value, what)
    return value


def check_depth(value: Any, what: str) -> None:
    """Raise DamagedError for tables and lists that are nested too deeply."""
    level = [value]
    for _ in range(NESTED):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list):
                below += item
        level = below
        if not level:
            return
    raise DamagedError(f"{what}: nested deeper than {NESTED} levels")
