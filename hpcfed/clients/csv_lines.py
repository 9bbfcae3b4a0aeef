"""Reader of the CSV files about clients that a job names."""

import csv
from collections.abc import Sequence
from pathlib import Path

from hpcfed.core.errors import DataError
from hpcfed.core.paths import regular


def read_csv(path: Path, header: Sequence[str], field: str) -> list[list[str]]:
    """Return the lines after the header, without empty ones.

    field: the job's field, which error messages name.
    Raises DataError for a file that cannot be read, or that begins with another header.
    """
    try:
        with regular(path).open(newline="", encoding="utf-8") as file:
            names, *lines = [row for row in csv.reader(file) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{field}: {path}: cannot be read: {reason}; give a CSV file, or another path"
        ) from error
    if [word.strip() for word in names] != list(header):
        raise DataError(
            f"{field}: {path}: begins with {','.join(names)!r}; the first line must be "
            f"{','.join(header)}"
        )
    return lines
