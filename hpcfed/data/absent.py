"""The message for a known data set whose files are not there."""

from pathlib import Path

from hpcfed.core.errors import DataError


def absent(name: str, root: Path, expected: str, source: str) -> DataError:
    """Return the error for missing files of a data set.

    expected: files or folders below root.
    source: where to get them, in words.
    """
    return DataError(
        f"{name}: not found in {root}\n"
        f"  expected there: {expected}\n"
        f"  {source}; copy it there, or name the folder that has it (--data.root)"
    )
