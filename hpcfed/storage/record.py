"""The record of a run as anyone reads it, while the run goes on too."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcfed.content import Table, reading
from hpcfed.errors import CheckpointError, DamagedError, unknown
from hpcfed.paths import matching
from hpcfed.storage import names, tree
from hpcfed.storage.atomic import opened
from hpcfed.storage.columns import joined, length
from hpcfed.storage.header import check_columns, check_record
from hpcfed.storage.journal import blocks
from hpcfed.storage.untrusted import DEPTH, Budget, array, child, number, subgroup

Header = dict[str, Any]
JOB_ID = "slurm_job"  # in the header: the batch job that the run was started by; "": none
FINISHED, STOPPED = (
    "finished",
    "stopped",
)  # `ended` in the header: all rounds are done, or a signal ended the run


@dataclass(frozen=True)
class Record:
    """A result file as it was when it was read.

    `columns` has by name [T, K], [T, R] or [T], where T = rounds; nan where a round has no value,
    or has fewer ranks than another. A column with such gaps is float64, whatever it was before.
    """

    header: Header
    arrays: dict[str, np.ndarray]
    columns: dict[str, np.ndarray]
    rounds: int
    path: Path = Path()

    def column(self, name: str) -> np.ndarray:
        """One column; CheckpointError for an unknown name."""
        if name not in self.columns:
            raise CheckpointError(f"results: {unknown('column', name, self.columns)}")
        return self.columns[name]


def load(run: Path) -> Record:
    """The results in a run folder, or in the file at that path; the run may still be going on.

    Raises CheckpointError if there are none, or the file is damaged, foreign or of another version.
    """
    path = names.results_of(run)
    # again, if the file was made anew while it was read, for then the journal is not the one that
    # it had
    while True:
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
        with opened(path, names.RESULTS) as file, reading(path):
            header, rounds = tree.read_json(file, "header"), number(file, "rounds")
            budget = Budget(file)
            arrays = _datasets(subgroup(file, "arrays"), budget)
            columns = _datasets(subgroup(file, "columns"), budget)
            check_columns(columns, rounds)
    except CheckpointError as error:
        raise type(error)(f"{error}\n  {_advice(path.parent)}") from error
    parts = [columns] if rounds else []
    with reading(path):
        for first, block in blocks(names.journal_file(path), path):
            if first != rounds:  # the file has been made anew meanwhile
                break
            parts.append(block)
            rounds += length(block)
        record = Record(header, Table(arrays, path), Table(joined(parts), path), rounds, path)
        try:
            check_record(record)
        except DamagedError as error:
            raise DamagedError(f"{path}: {error}; it was not written by hpcfed") from error
    return record


def _advice(folder: Path) -> str:
    if os.path.isfile(names.sweep_file(folder)):
        return f"{folder} is a sweep: give one of its runs, which `hpcfed status {folder}` lists"
    return (
        "give the folder of a run that has begun, restore the file from a copy, or run the "
        "job again"
    )


def stamp(run: Path) -> tuple[Any, ...]:
    """What tells the results of a run from those of another moment, without reading them."""
    path = names.results_of(run)
    return _stamp(path), _stamp(names.journal_file(path))


def recover(run: Path, rounds: int = 0) -> Record:
    """The results in a run folder; if they are damaged or missing, the copy that belongs to its
    last checkpoint.

    rounds: that they should have; those of which the journal is damaged or missing have fewer.
    """
    try:
        found = [load(run)]
    except DamagedError:
        found = []
    if not found or found[0].rounds < rounds:
        found += filter(
            None, map(_whole, matching(names.checkpoint_folder(run), "round-*/results.h5"))
        )
    return max(found, key=lambda record: record.rounds) if found else load(run)


def _whole(path: Path) -> Record | None:
    try:
        return load(path)
    except CheckpointError:
        return None


def _datasets(group: h5py.Group, budget: Budget, depth: int = 0) -> dict[str, np.ndarray]:
    """All datasets under a group, by path."""
    if depth > DEPTH:
        raise DamagedError(f"{group.name}: nested deeper than {DEPTH} levels")
    found: dict[str, np.ndarray] = {}
    for name in sorted(group):
        node = child(group, name)
        budget.take(node)
        if isinstance(node, h5py.Group):
            below = _datasets(node, budget, depth + 1)
            found |= {f"{name}/{path}": values for path, values in below.items()}
        else:
            found[name] = array(node)
    return found
