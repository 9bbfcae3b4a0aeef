"""The record of a run, round by round: written by rank 0, readable by anyone while the run goes on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import h5py
import numpy as np

from hpcfed.errors import CheckpointError, unknown
from hpcfed.storage import names, tree
from hpcfed.storage.atomic import opened, replacing
from hpcfed.storage.columns import Columns, joined, length, stacked
from hpcfed.storage.journal import Journal, blocks

BUDGET = 0.02  # largest share of a run's time that goes into making the file anew
MANY = 100  # rounds that wait in memory, where nothing asks for them on the disk
FINAL = "final"  # arrays of what a method does after the last round
PAST = ("versions", "commit", "hardware", "ranks")  # what a resumed run keeps of each header before its own

Header = dict[str, Any]
Cell = np.ndarray | np.generic | float | int


class Results:
    """The writer. All rounds stay in memory, and writing the file makes the whole of it anew, so no kill can harm it.

    That takes longer the more rounds there are. So where it would take too much of a run's time, the rounds since
    are added to a journal beside the file instead, which `load` reads too; `finish` leaves the file alone.

    header: JSON-able (job, algorithm, versions, ranks, placement, names of architectures and classes ...).
    arrays: facts that do not change from round to round, such as label_counts [K, C].
    """

    def __init__(self, run: Path, header: Header, arrays: dict[str, np.ndarray]):
        self.path, self.header, self.arrays = names.results_file(run), header, arrays
        self._blocks: list[Columns] = []  # rounds that are on disk
        self._rows: list[dict[str, np.ndarray]] = []  # and those that are not
        self._journal: Journal | None = None  # once there is a file that it can go on from
        self._written, self._took = monotonic(), 0.0  # when the file was last written, and the seconds of a round in it

    @classmethod
    def resume(cls, run: Path, rounds: int, header: Header) -> Results:
        """Go on after the first `rounds` rounds of the run's result file; later rows are dropped.

        `header` replaces the old one, of which "history" keeps the versions, hardware and ranks, and up to
        which round they hold. Raises CheckpointError if the file has fewer rows, or as `load` does.
        """
        old = load(run)
        if old.rounds < rounds:
            raise CheckpointError(
                f"{names.results_file(run)}: holds {old.rounds} rounds, the checkpoint {rounds}; "
                "resume from an earlier checkpoint, or restore the result file that belongs to this one"
            )
        past = {"rounds": rounds} | {key: old.header[key] for key in PAST if key in old.header}
        arrays = {name: array for name, array in old.arrays.items() if not name.startswith(f"{FINAL}/")}
        results = cls(run, {**header, "history": [*old.header.get("history", []), past]}, arrays)
        results._blocks = [{name: column[:rounds] for name, column in old.columns.items()}] if rounds else []
        return results

    @property
    def rounds(self) -> int:
        """How many rows there are."""
        return sum(map(length, self._blocks)) + len(self._rows)

    def append(self, row: dict[str, Cell]) -> None:
        """Add one round: by name one value per client [K], per rank [R], or one number."""
        self._rows.append({name: _cell(name, value) for name, value in row.items()})

    def write(self, force: bool = False) -> None:
        """Bring what is new to the disk: into the file while that takes at most 2 % of the time, else the journal.

        Without force, the journal waits for a hundred rounds. Raises CheckpointError if the disk refuses.
        """
        if self._journal is None or self._expected() <= BUDGET * (monotonic() - self._written):
            self.finish()
        elif self._rows and (force or len(self._rows) >= MANY):
            block = stacked(self._rows)
            self._journal.append(self.rounds - len(self._rows), block)
            self._blocks.append(block)
            self._rows = []

    def finish(self) -> None:
        """Make the file complete up to the last row; then it needs no journal. Raises CheckpointError as `write`."""
        begin = monotonic()
        columns = self._columns()
        with replacing(self.path, names.RESULTS) as file:
            self._fill(file, columns)
        self._blocks, self._rows = [columns] if columns else [], []
        self._journal = Journal(names.journal_file(self.path), self.path)
        self._journal.path.unlink(missing_ok=True)
        self._written = monotonic()
        self._took = (self._written - begin) / max(1, self.rounds)

    def _expected(self) -> float:
        """Seconds that it would take to write the file now."""
        return self._took * self.rounds

    def _columns(self) -> Columns:
        """All rounds so far."""
        return joined([*self._blocks, *([stacked(self._rows)] if self._rows else [])])

    def _fill(self, file: h5py.File, columns: Columns) -> None:
        file.attrs["rounds"] = self.rounds
        tree.write_json(file, "header", self.header)
        arrays, table = file.create_group("arrays"), file.create_group("columns")
        for name, array in self.arrays.items():
            arrays[name] = array
        for name, column in columns.items():
            table[name] = column


@dataclass(frozen=True)
class Record:
    """A result file as it was when it was read.

    `columns` has by name [T, K], [T, R] or [T], where T = rounds; nan where a round has no value, or has
    fewer ranks than another. A column with such gaps is float64, whatever it was before.
    """

    header: Header
    arrays: dict[str, np.ndarray]
    columns: dict[str, np.ndarray]
    rounds: int

    def column(self, name: str) -> np.ndarray:
        """One column; CheckpointError for an unknown name."""
        if name not in self.columns:
            raise CheckpointError(f"results: {unknown('column', name, self.columns)}")
        return self.columns[name]


def load(run: Path) -> Record:
    """The results in a run folder, or in the file at that path; the run may still be going on.

    Raises CheckpointError if there are none, or the file is damaged, foreign or of another version.
    """
    path = names.results_file(run) if os.path.isdir(run) else run
    while True:  # again, if the file was made anew while it was read, for then the journal is not the one that it had
        before = _stamp(path)
        record = _read(path)
        if _stamp(path) == before:
            return record


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells a file from another of the same name."""
    try:
        return (found := os.stat(path)).st_ino, found.st_mtime_ns
    except (OSError, ValueError):
        return None


def _read(path: Path) -> Record:
    try:
        with opened(path, names.RESULTS) as file:
            header, rounds = tree.read_json(file, "header"), int(file.attrs["rounds"])
            arrays, columns = _datasets(file["arrays"]), _datasets(file["columns"])
    except CheckpointError as error:
        advice = "give the folder of a run that has begun, restore the file from a copy, or run the job again"
        raise CheckpointError(f"{error}\n  {advice}") from error
    parts = [columns] if rounds else []
    for first, block in blocks(names.journal_file(path), path):
        if first != rounds:  # the file has been made anew meanwhile
            break
        parts.append(block)
        rounds += length(block)
    return Record(header, arrays, joined(parts), rounds)


def _cell(name: str, value: Cell) -> np.ndarray:
    cell = np.array(value)  # a copy: the caller may reuse its array
    if cell.ndim > 1 or cell.dtype.kind not in "biuf":
        raise CheckpointError(
            f"results: column {name!r} got {cell.dtype} {list(cell.shape)}; give one number, [K] or [R]"
        )
    return cell


def _datasets(group: h5py.Group) -> dict[str, np.ndarray]:
    """All datasets under a group, by path."""
    paths: list[str] = []
    group.visit(paths.append)
    return {path: group[path][...] for path in paths if isinstance(group[path], h5py.Dataset)}
