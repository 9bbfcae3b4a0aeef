"""Writing of a run's record, round by round, by rank 0; `record` reads it at any time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from time import monotonic

import h5py
import numpy as np

from hpcfed.core.errors import CheckpointError, DamagedError, WriteError
from hpcfed.storage import names, tree
from hpcfed.storage.atomic import convert_write_errors, replace_file
from hpcfed.storage.checksum import Written
from hpcfed.storage.columns import (
    LOST,
    PADDED,
    Columns,
    concat_columns,
    for_readers,
    length,
    select_rounds,
    stack_rows,
    stored,
)
from hpcfed.storage.header import check_own_header
from hpcfed.storage.record import JOB_ID, Header, Record, load, recover

__all__ = ["Record", "Results", "load", "recover"]

BUDGET = 0.02  # largest share of a run's time for rewriting the file
MANY = 10_000  # rounds that may wait in memory
FINAL = "final"  # arrays of a method's final step
PAST = (
    "own",
    "data_digests",
    "file_digests",
    "versions",
    "commit",
    "hardware",
    "ranks",
    JOB_ID,
)  # what a resumed run keeps of each header before its own

Cell = np.ndarray | np.generic | float | int
Rows = dict[str, Mapping[str, Cell]]  # by the round's number, from 0


class Results:
    """Writer of a run's results.

    All rounds stay in memory, each with the clients that it has rows of, and each write makes the
    whole file anew, so a killed process cannot damage it. That takes longer the more rounds there
    are, so new rounds wait in memory until it takes little of a run's time, or a checkpoint needs
    them on disk.

    While the run continues, another program or the disk may change the file. Before each use it is
    compared with what was written to it, and written again from memory if it differs.
    header: JSON-able (job, algorithm, versions, ranks, placement, names of architectures and
    classes ...).
    arrays: data that do not change from round to round, such as label_counts [K, C].
    warn: called with a message if the file has changed.
    Raises ConfigError for a header that could not be read again, such as one with a name that is no
    Unicode text.
    """

    def __init__(
        self,
        run: Path,
        header: Header,
        arrays: dict[str, np.ndarray],
        warn: Callable[[str], None] = lambda text: None,
    ):
        check_own_header(header)
        self.path, self.header, self.arrays = names.results_file(run), header, arrays
        self.warn = warn
        self._blocks: list[Columns] = []  # rounds that are on disk
        self._rows: list[dict[str, np.ndarray]] = []  # and those that are not
        self._file: Written | None = None  # once there is one
        self.source = self.path  # the file from which the run was resumed
        self.lost: list[int] = []  # rounds, from 1, of which it had no record
        # when the file was last written, and the seconds of a round in it
        self._written, self._took = monotonic(), 0.0

    @classmethod
    def resume(
        cls,
        run: Path,
        rounds: int,
        header: Header,
        pending: Rows | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
        memory: Record | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> Results:
        """Continue after the first `rounds` rounds of the run's result file; drop later rows.

        pending: rows that the file may lack, from `pending_rows`.
        header: replaces the old one; "history" keeps the old one's versions, hardware, ranks and
        batch job, and up to which round they hold.
        arrays: as for a new file; those of an earlier end (final steps, groups) are dropped.
        memory: the results that a continuing process has; then no file is read.
        Rounds without a record are `lost`: they have a row with 1 in "rounds/lost", and nan in all
        other columns. An unreadable file is then kept beside the new one (`set_aside`). Raises
        CheckpointError if the results are of another format or version, or for more rounds than any
        run has.
        """
        pending = pending or {}
        needed = next((t for t in range(rounds, 0, -1) if str(t - 1) not in pending), 0)
        try:
            old = memory or recover(run, needed)
        except DamagedError:
            old = Record({}, {}, {}, 0)
        part = {"rounds": rounds} | {key: old.header[key] for key in PAST if key in old.header}
        history = [*old.header.get("history", []), part]
        results = cls(run, {**header, "history": history}, dict(arrays or {}), warn)
        written = min(rounds, old.rounds)
        results._blocks = [select_rounds(stored(old.columns), 0, written)] if written else []
        start = min([int(t) for t in pending if int(t) >= written] + [rounds])
        if start > written:
            results._lose(start - written)
        for t in range(start, rounds):
            if str(t) not in pending:
                results.lost.append(t + 1)
            results.append(pending.get(str(t), {LOST: 1.0}))
        results.source = results.path if memory else old.path
        if results.lost and results.source != results.path:
            with suppress(OSError):
                os.replace(results.path, set_aside(results.path))
        return results

    def _lose(self, n: int) -> None:
        """Add n rounds without a record. Raises DamagedError for more than any run has."""
        if n * 8 > PADDED:
            raise DamagedError(
                f"{self.path}: holds {self.rounds} rounds, but the checkpoint says that "
                f"{self.rounds + n} are done, more than it can; resume from another checkpoint"
            )
        self.lost += range(self.rounds + 1, self.rounds + n + 1)
        self._blocks.append({LOST: np.ones(n)})

    def record(self) -> Record:
        """Return all rounds so far, as `load` would."""
        columns = self._by_client(self._columns())
        return Record(self.header, self.arrays, columns, self.rounds, self.path)

    def _by_client(self, columns: Columns) -> MutableMapping[str, np.ndarray]:
        return for_readers(columns, self.header)

    @property
    def rounds(self) -> int:
        """The number of rows."""
        return sum(map(length, self._blocks)) + len(self._rows)

    @property
    def is_on_disk(self) -> bool:
        """Whether this process has written the file."""
        return self._file is not None

    def row(self, t: int) -> dict[str, np.ndarray]:
        """Return round t, counted from 1, as readers see it; nan where other rounds have more."""
        for block in self._blocks:
            if t <= length(block):
                columns = self._by_client(select_rounds(block, t - 1, t))
                return {name: column[0] for name, column in columns.items()}
            t -= length(block)
        columns = self._by_client(stack_rows([self._rows[t - 1]]))
        return {name: column[0] for name, column in columns.items()}

    def pending_rows(self) -> Rows:
        """Return the rows that are not on disk yet."""
        start = self.rounds - len(self._rows)
        return {str(start + i): row for i, row in enumerate(self._rows)}

    def append(self, row: Mapping[str, Cell]) -> None:
        """Append one round: by name one value per client [K], per rank [R], or one number.

        With `clients/id` the values per client are those of some clients, [n].
        """
        self._rows.append({name: _cell(name, value) for name, value in row.items()})

    def write(self, most: int = MANY) -> None:
        """Write the file if that takes at most 2 % of the time since the last write.

        most: rounds that may wait in memory until then.
        Raises WriteError if the disk refuses; rows then stay in memory.
        """
        expected = self._took * self.rounds
        due = expected <= BUDGET * (monotonic() - self._written) or len(self._rows) >= most
        if due or self._file is None or self._changed(self._file):
            self.finish()

    def secure(self, rounds: int) -> None:
        """Make sure that the first `rounds` rounds are on disk. Raises WriteError if that fails."""
        missing = self.rounds - len(self._rows) < rounds
        if missing or self._file is None or self._changed(self._file):
            self.finish()

    def _changed(self, file: Written, read: bool = False) -> bool:
        """Return whether the file is not as it was written, after a warning in that case.

        read: whether to read it in any case.
        """
        if not file.changed(read):
            return False
        self.warn(
            f"{self.path}: this file is not as the run wrote it: it was changed or removed by "
            "another program or the disk; it is written again from memory"
        )
        return True

    def finish(self) -> None:
        """Write the complete file, up to the last row. Raises WriteError as `write` does."""
        begin = monotonic()
        columns = self._columns()
        try:
            with replace_file(self.path, names.RESULTS) as file:
                self._fill(file, columns)
        finally:
            self._written = monotonic()  # after a refusal too: the next try costs as much
            self._took = (self._written - begin) / max(1, self.rounds)
        self._blocks, self._rows = [columns] if columns else [], []
        self._file = None  # the next write makes the file anew if it cannot be read now
        with convert_write_errors(self.path):
            self._file = Written(self.path)

    def copy(self, path: Path) -> None:
        """Copy the file on disk, and verify both the file and its copy; call `secure` before.

        A file that differs from what was written is written again before. Raises WriteError if that
        or the copy fails.
        """
        for _ in range(2):  # the file may change just before it is copied
            if self._file is None or self._changed(self._file, read=True):
                self.finish()
            assert self._file is not None
            with convert_write_errors(path):
                shutil.copyfile(self.path, path)
            if self._file.equals(path):
                return
        raise WriteError(f"{path}: is not what was written to it; check the disk")

    def _columns(self) -> Columns:
        """Return all rounds so far."""
        return concat_columns([*self._blocks, *([stack_rows(self._rows)] if self._rows else [])])

    def _fill(self, file: h5py.File, columns: Columns) -> None:
        file.attrs["rounds"] = self.rounds
        tree.write_json(file, "header", self.header)
        arrays, table = file.create_group("arrays"), file.create_group("columns")
        for name, array in self.arrays.items():
            arrays[name] = array
        for name, column in columns.items():
            table[name] = column


def _cell(name: str, value: Cell) -> np.ndarray:
    cell = np.array(value)  # a copy: the caller may reuse its array
    if cell.ndim > 1 or cell.dtype.kind not in "biuf":
        raise CheckpointError(
            f"results: column {name!r} got {cell.dtype} {list(cell.shape)}; give one number, [K] "
            f"or [R]"
        )
    return cell


def set_aside(path: Path) -> Path:
    """Return the path where an unreadable file is kept if the run continues without it."""
    return path.with_name(f"{path.name}.damaged")
