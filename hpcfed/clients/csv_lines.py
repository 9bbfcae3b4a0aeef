"""Reader of the CSV files about clients that a job names: a client's id, then numbers, a line."""

import csv
from collections.abc import Sequence
from pathlib import Path

from hpcfed.core.errors import DataError
from hpcfed.core.paths import regular


def read_csv(path: Path, header: Sequence[str], field: str) -> list[tuple[int, list[float]]]:
    """Return the client and the numbers of each line after the header.

    field: the job's field, which error messages name.
    Raises DataError for a file that cannot be read, begins with another header, or has a line of
    anything else.
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
    return [parse(path, header, field, line) for line in lines]


def parse(
    path: Path, header: Sequence[str], field: str, line: list[str]
) -> tuple[int, list[float]]:
    """Return the client and the numbers of a line."""
    try:
        k, values = int(line[0]), [float(word) for word in line[1:]]
        if len(line) != len(header):
            raise ValueError("another number of columns than the header")
    except ValueError as error:
        raise DataError(
            f"{field}: {path}: {','.join(line)!r}: write {','.join(header)} as numbers"
        ) from error
    return k, values


def read_each(path: Path, header: Sequence[str], field: str, clients: int) -> list[list[float]]:
    """Return the numbers of each client, from a file with one line for each, in any order.

    Raises DataError as `read_csv`, and if a client has no line or several.
    """
    lines = sorted(read_csv(path, header, field))
    if [k for k, _ in lines] != list(range(clients)):
        raise DataError(
            f"{field}: {path}: has {len(lines)} lines for {clients} clients; "
            f"give one line for each of the clients 0..{clients - 1}"
        )
    return [values for _, values in lines]
