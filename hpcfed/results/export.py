"""`hpcfed export RUN`: a run's tables as CSV or Parquet, its header as JSON, its job as TOML."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.config.write import to_toml, without_call
from hpcfed.core.optional_imports import import_extra
from hpcfed.results.tables import TABLES, Table
from hpcfed.storage.atomic import convert_write_errors
from hpcfed.storage.record import load


def export(run: Path, format: str = "csv", out: Path | None = None) -> str:
    """Write a file for each table that has rows, `job.json`, `header.json` and `job.toml`.

    `job.toml` runs the job again. Returns a message that lists the files.
    out: the folder to write to; default: `export` in the run's folder.
    Raises ConfigError if Parquet's package is missing, or if no job file can hold a field of the
    job.
    """
    write, record = writer(format), load(run)
    folder = out or record.path.parent / "export"
    tables = {name: rows for name, of in TABLES.items() if length(rows := of(record))}
    with convert_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in tables.items():
            write(folder / f"{name}.{format}", rows)
        to_json(folder / "job.json", record.header["job"])
        (folder / "job.toml").write_text(job_file(record.header["job"]), encoding="utf-8")
        to_json(folder / "header.json", record.header)
    said = [f"{folder / name}.{format}: {length(rows)} rows" for name, rows in tables.items()]
    return "\n".join(
        [
            *said,
            f"{folder / 'job.json'}",
            f"{folder / 'job.toml'}: runs it again, with hpcfed run",
            f"{folder / 'header.json'}: versions, hardware, placement",
        ]
    )


def job_file(job: dict[str, Any]) -> str:
    """Return the text of a job file that runs the job again."""
    return to_toml(without_call(job))


def length(rows: Table) -> int:
    return len(next(iter(rows.values())))


def writer(format: str) -> Callable[[Path, Table], object]:
    """Return the function that writes a table to a path.

    Raises ConfigError if its package is missing.
    """
    if format == "csv":
        return to_csv
    arrow, parquet = (
        import_extra(name, "export", "--format parquet") for name in ("pyarrow", "pyarrow.parquet")
    )
    return lambda path, rows: parquet.write_table(arrow.table(rows), path)


def to_csv(path: Path, rows: Table) -> None:
    """Write a table as CSV, one line a row.

    Numbers have all the digits that are needed to read them back exactly; nan is an empty cell. A
    word that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows)
        writer.writerows(zip(*map(cells, rows.values()), strict=True))


def cells(column: np.ndarray) -> list[Any]:
    """Return a column as Python values, with "" for nan.

    csv writes a float as repr does, with the fewest digits that distinguish it from any other.
    """
    values = column.tolist()
    if column.dtype.kind == "f":
        return ["" if value != value else value for value in values]
    return [f"'{v}" if isinstance(v, str) and is_formula(v) else v for v in values]


def is_formula(word: str) -> bool:
    """Return whether a spreadsheet would compute a cell with this word."""
    try:
        float(word)
    except ValueError:
        return word.startswith(("=", "+", "-", "@", "\t", "\r"))
    return False


def to_json(path: Path, item: Any) -> None:
    path.write_text(json.dumps(item, indent=2) + "\n", encoding="utf-8")
