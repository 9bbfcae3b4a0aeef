"""The record of a run, round by round: written by rank 0, readable by anyone while the run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import h5py
import numpy as np

from hpcfed.errors import CheckpointError, unknown
from hpcfed.storage import names, tree
from hpcfed.storage.atomic import opened, replacing

BUDGET = 0.02  # largest share of a run's time that goes into unforced writes
FINAL = "final"  # arrays of what a method does after the last round
PAST = ("versions", "commit", "hardware", "ranks")  # what a resumed run keeps of each header before its own

Header = dict[str, Any]
Cell = np.ndarray | np.generic | float | int


class Results:
    """The writer. Rows stay in memory; each write makes the whole file anew, so no kill can harm it.

    header: JSON-able (job, algorithm, versions, ranks, placement, names of architectures and classes ...).
    arrays: facts that do not change from round to round, such as label_counts [K, C].
    """

    def __init__(self, run: Path, header: Header, arrays: dict[str, np.ndarray]):
        self.path, self.header, self.arrays = names.results_file(run), header, arrays
        self._rows: list[dict[str, np.ndarray]] = []
        self.stored = 0  # of them on disk
        self._written, self._took = monotonic(), 0.0  # when the last write ended, and its seconds

    @classmethod
    def resume(cls, run: Path, rounds: int, header: Header, known: dict[str, dict[str, Cell]] | None = None) -> Results:
        """Go on after the first `rounds` rounds of the run's result file; later rows are dropped.

        known: rows that the file may lack, as `unwritten` gave them.  `header` replaces the old one, of which "history"
        keeps the versions, hardware and ranks, and up to which round they hold. Raises CheckpointError if rows are
        missing, or as `load` does.
        """
        old, known = load(run), known or {}
        if any(str(t) not in known for t in range(old.rounds, rounds)):
            raise CheckpointError(
                f"{names.results_file(run)}: holds {old.rounds} rounds, the checkpoint {rounds}; "
                "resume from an earlier checkpoint, or restore the result file that belongs to this one"
            )
        past = {"rounds": rounds} | {key: old.header[key] for key in PAST if key in old.header}
        arrays = {name: array for name, array in old.arrays.items() if not name.startswith(f"{FINAL}/")}
        results = cls(run, {**header, "history": [*old.header.get("history", []), past]}, arrays)
        for t in range(rounds):
            written = t < old.rounds
            results.append({name: column[t] for name, column in old.columns.items()} if written else known[str(t)])
        return results

    def unwritten(self) -> dict[str, dict[str, Cell]]:
        """The rows that are not on disk yet, by number."""
        return {str(t): self._rows[t] for t in range(self.stored, self.rounds)}

    @property
    def rounds(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def append(self, row: dict[str, Cell]) -> None:
        """Add one round: by name one value per client [K], per rank [R], or one number."""
        self._rows.append({name: _cell(name, value) for name, value in row.items()})

    def write(self, force: bool = False) -> None:
        """Make the file on disk complete up to the last row.

        Without force, nothing happens while the last write took more than 2 % of the time since it: long
        runs with large files write less often. Raises CheckpointError if the file cannot be written.
        """
        begin = monotonic()
        if not force and self._took > BUDGET * (begin - self._written):
            return
        with replacing(self.path, names.RESULTS) as file:
            self._fill(file)
        self.stored = self.rounds
        self._written = monotonic()
        self._took = self._written - begin

    def _fill(self, file: h5py.File) -> None:
        file.attrs["rounds"] = self.rounds
        tree.write_json(file, "header", self.header)
        arrays, columns = file.create_group("arrays"), file.create_group("columns")
        for name, array in self.arrays.items():
            arrays[name] = array
        for name in dict.fromkeys(name for row in self._rows for name in row):
            columns[name] = _column([row.get(name) for row in self._rows])


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
    path = names.results_file(run) if run.is_dir() else run
    try:
        with opened(path, names.RESULTS) as file:
            header, rounds = tree.read_json(file, "header"), int(file.attrs["rounds"])
            return Record(header, _datasets(file["arrays"]), _datasets(file["columns"]), rounds)
    except CheckpointError as error:
        advice = "give the folder of a run that has begun, restore the file from a copy, or run the job again"
        raise CheckpointError(f"{error}\n  {advice}") from error


def _cell(name: str, value: Cell) -> np.ndarray:
    cell = np.array(value)  # a copy: the caller may reuse its array
    if cell.ndim > 1 or cell.dtype.kind not in "biuf":
        raise CheckpointError(
            f"results: column {name!r} got {cell.dtype} {list(cell.shape)}; give one number, [K] or [R]"
        )
    return cell


def _column(cells: list[np.ndarray | None]) -> np.ndarray:
    """Cells of one shape stacked as they are; otherwise float64, filled up with nan."""
    known = [cell for cell in cells if cell is not None]
    if len(known) == len(cells) and len({cell.shape for cell in known}) == 1:
        return np.stack(known)
    column = np.full((len(cells), *max(cell.shape for cell in known)), np.nan)
    for t, cell in enumerate(cells):
        if cell is not None:
            column[(t, *map(slice, cell.shape))] = cell
    return column


def _datasets(group: h5py.Group) -> dict[str, np.ndarray]:
    """All datasets under a group, by path."""
    paths: list[str] = []
    group.visit(paths.append)
    return {path: group[path][...] for path in paths if isinstance(group[path], h5py.Dataset)}
