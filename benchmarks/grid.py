"""Tables whose cells are runs: each finished run leaves one line in a file of rows, and no other.

The same call continues with the lines that are missing, or that other flags have made. Runs are
forks of this process (`study/forks.py`), so that imports and data are paid once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rowfiles
from runs import FOLDER, short_commit, slug

from hpcfed.core.exit_status import DONE, WRONG
from hpcfed.report.fairness import worst_tenth
from hpcfed.results import summary
from hpcfed.storage.record import Record

sys.path.append(str(Path(__file__).parent / "study"))

import forks

# of clients' accuracies: of their own models, and of what they would receive next
COLUMNS = {"own": "clients/accuracy", "received": "clients/accuracy_received"}
REFUSED = "defence.by = "  # in that of a method whose means a defence cannot take


class Cell(NamedTuple):
    """One run: its key in the rows, its job file, and flags over it."""

    key: str
    job: Path
    flags: str


def read(file: Path) -> dict[str, Any]:
    """Return the rows by key."""
    return rowfiles.by_key(file)


def missing(cells: Iterable[Cell], rows: Mapping[str, Any]) -> list[Cell]:
    """Return the cells without a row of their flags."""
    return [cell for cell in cells if rows.get(cell.key, {}).get("flags") != cell.flags]


def fill(
    file: Path,
    cells: Iterable[Cell],
    figures: Callable[[str, Path], dict[str, Any]],
    side_by_side: int,
) -> list[str]:
    """Do the runs whose rows are missing, this number at a time, and return what failed.

    figures: (key, result file) -> what the row says of the run.
    """
    rows = read(file)
    wanted = iter(missing(cells, rows))
    running: dict[int, Cell] = {}  # by process
    failed = []
    forks.stop_on_signals(running, place)
    while True:
        while len(running) < side_by_side and (cell := next(wanted, None)):
            words = [str(cell.job), *cell.flags.split()]
            running[forks.start(words, place(cell))] = cell
        if not running:
            return failed
        process, status, seconds = forks.wait()
        cell = running.pop(process)
        message = "" if status == DONE else forks.message(place(cell))
        if status == DONE:
            row = figures(cell.key, place(cell) / "results.h5")
        elif forks.diverged(message):
            row = {"diverged": True}
        elif status == WRONG and REFUSED in message:
            row = {"refused": message}
        else:
            failed.append(f"{cell.key}, status {status}: {message}")
            forks.remove(place(cell))
            continue
        forks.remove(place(cell))
        row = {"key": cell.key, "flags": cell.flags, "cpu": round(seconds, 1), **row}
        rowfiles.write(file, sorted((read(file) | {cell.key: row}).values(), key=itemgetter("key")))
        print(f"{cell.key}: {seconds:.1f} s of CPU", flush=True)


def of_clients(record: Record, column: str) -> dict[str, Any]:
    """Return of a run's last round the mean over clients of a column and that of the worst tenth,
    bytes that a client sends in a round, and the commit; it ends in "+" if files differ.
    """
    scores = record.column(column)[-1]
    scores = scores[np.isfinite(scores)]
    return {
        "accuracy": round(float(scores.mean()), 5),
        "worst_tenth": round(worst_tenth(scores, high=True), 5),
        "up": round(float(summary.traffic(record)["up_per_client_round"]), 1),
        "commit": short_commit(record),
    }


def place(cell: Cell) -> Path:
    """Return the folder of a run that is not done."""
    return FOLDER / "grid" / slug(cell.key)
