"""Reading of a run's record, also during the run."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.core.errors import AbsentError, CheckpointError, DamagedError, unknown
from hpcfed.core.paths import glob_folder
from hpcfed.core.safe_read import Table, convert_read_errors
from hpcfed.storage import checksum, names, tree
from hpcfed.storage.atomic import open_file
from hpcfed.storage.columns import check_columns, for_readers
from hpcfed.storage.header import check_header, check_record
from hpcfed.storage.untrusted import (
    DEPTH,
    Budget,
    GroupID,
    array,
    child,
    links,
    number,
    subgroup,
    where,
)

Header = dict[str, Any]
JOB_ID = "slurm_job"  # in the header: the batch job that the run was started by; "": none
WEIGHTS = "weights"  # in the header of checkpoints: checksums of the files of models.weights
RUN_ID = "run_id"  # in headers and of partitions: identity of the run; "" or missing without one
FINAL_STEP = "final_step"  # in the header of a file of the models after the method's final step
FINISHED, STOPPED = (
    "finished",
    "stopped",
)  # `ended` in the header: all rounds are done, or a signal ended the run


def has_ended(record: Record, rounds: int) -> bool:
    """Return whether a run has done these rounds, or has ended early by evaluate.patience."""
    return record.rounds >= rounds or bool(record.header.get("early"))


def has_finished(record: Record, rounds: int) -> bool:
    """Return whether a run has ended, as `has_ended` says, and has done its final steps too."""
    return record.header.get("ended") == FINISHED and has_ended(record, rounds)


@dataclass(frozen=True)
class Record:
    """A result file as it was when it was read.

    columns: by name, [T, K], [T, R] or [T], where T = rounds; nan if a round has no value, or has
    fewer ranks than another. A column with such gaps is float64, whatever it was before. They are
    `columns.ByClient` if the file has rows of some clients only.
    """

    header: Header
    arrays: dict[str, np.ndarray]
    columns: MutableMapping[str, np.ndarray]
    rounds: int
    path: Path = Path()

    def column(self, name: str) -> np.ndarray:
        """Return one column; raises CheckpointError for an unknown name."""
        if name not in self.columns:
            all_of_them = "hpcfed.load(RUN).columns"
            raise CheckpointError(f"results: {unknown('column', name, self.columns, all_of_them)}")
        return self.columns[name]


def load(run: Path) -> Record:
    """Return the results in a run folder, or in the file at that path.

    The run may still continue. Raises CheckpointError if there are no results, or if the file is
    damaged, of another format or of another version.
    """
    path = names.results_of(run)
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise AbsentError(_absent(path)) from error
    except (OSError, ValueError):
        pass  # reported below as a file that cannot be read
    try:
        with open_file(path, names.RESULTS) as file:
            header, rounds = tree.read_json(file, "header"), number(file.id, "rounds")
            budget = Budget(file.id)
            arrays = _datasets(subgroup(file.id, "arrays"), budget)
            columns = _datasets(subgroup(file.id, "columns"), budget)
            check_columns(columns, rounds)
    except CheckpointError as error:
        raise type(error)(f"{error}\n  {_advice(path.parent)}") from error
    with convert_read_errors(path):
        try:
            check_header(header)
            block = for_readers(Table(columns, path), header)
            record = Record(header, Table(arrays, path), block, rounds, path)
            check_record(record)
        except DamagedError as error:
            raise DamagedError(f"{path}: {error}; it was not written by hpcfed") from error
    return record


def _absent(path: Path) -> str:
    """Return a message that says why there are no results at this path, and what to do."""
    folder = path.parent if path.name == names.results_file(path.parent).name else path
    if not os.path.isdir(folder):
        return (
            f"{folder}: no such folder or file; `hpcfed status runs/*` lists the runs below runs, "
            "and those of its sweeps"
        )
    return f"{path}: No such file: no run has started in this folder\n  {_advice(folder)}"


def _advice(folder: Path) -> str:
    if os.path.isfile(names.sweep_file(folder)):
        return f"{folder} is a sweep: give one of its runs, which `hpcfed status {folder}` lists"
    return (
        "give the folder of a run that has started, restore the file from a copy, or run the "
        "job again"
    )


def stamp(run: Path) -> checksum.Stamp:
    """Return a value that changes whenever the results of a run do, without reading them."""
    return checksum.stamp(names.results_of(run))


def recover(run: Path, rounds: int = 0) -> Record:
    """Return the results in a run folder, or a copy beside a checkpoint if they are damaged.

    rounds: the number that they should have; if they have fewer, copies are tried too. The record
    with most rounds is returned.
    Raises DamagedError if all copies are damaged too, CheckpointError if the results are of another
    format or version.
    """
    records: list[Record] = []
    try:
        records.append(load(run))
    except DamagedError as error:
        damage = error
    if not records or records[0].rounds < rounds:
        copies = map(_readable, glob_folder(names.checkpoint_folder(run), "round-*/results.h5"))
        records += [
            copy for copy in copies if copy and not (records and other_run(records[0], copy))
        ]
    if not records:
        raise damage
    return max(records, key=lambda record: record.rounds)


def other_run(a: Record, b: Record) -> bool:
    """Return whether two records name their runs, and these differ."""
    return differ(a.header.get(RUN_ID), b.header.get(RUN_ID))


def differ(identity: Any, other: Any) -> bool:
    """Return whether two runs' identities are known and differ."""
    return bool(identity and other) and identity != other


def same_run(header: Header, other: Header, path: Path) -> None:
    """Raise CheckpointError if a file belongs to another run than the results beside it.

    header: the header of the results.
    other: the header of the file at `path`.
    """
    if differ(header.get(RUN_ID), other.get(RUN_ID)):
        raise CheckpointError(
            f"{path}: is of another run ({other[RUN_ID]}) than the results of this folder "
            f"({header[RUN_ID]}); put it back into its folder, or take a checkpoint of this run"
        )


def _readable(path: Path) -> Record | None:
    try:
        return load(path)
    except CheckpointError:
        return None


def _datasets(group: GroupID, budget: Budget, depth: int = 0) -> dict[str, np.ndarray]:
    """Return all datasets under a group, by path."""
    if depth > DEPTH:
        raise DamagedError(f"{where(group)}: nested deeper than {DEPTH} levels")
    datasets: dict[str, np.ndarray] = {}
    for name in sorted(links(group)):
        node = child(group, name, budget)
        if isinstance(node, GroupID):
            below = _datasets(node, budget, depth + 1)
            datasets |= {f"{name}/{path}": values for path, values in below.items()}
        else:
            datasets[name] = array(node, budget=budget)
    return datasets
