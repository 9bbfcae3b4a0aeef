"""State of a run from its files alone: its progress, and whether it is running."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from time import localtime, strftime, time
from typing import Any

import numpy as np

from hpcfed.core.errors import CheckpointError, first_line, printable
from hpcfed.core.exit_status import RESUME_ME
from hpcfed.core.paths import glob_folder
from hpcfed.results.columns import by_round, last, main_metric
from hpcfed.results.summary import summary_statistics
from hpcfed.storage import checkpoint, lock, names
from hpcfed.storage import sweep as sweeps
from hpcfed.storage.record import FINISHED, STOPPED, Record, has_finished, load

RECENT = 10  # rounds whose mean time predicts the next ones
# twice the seconds within which the ranks of a running run renew their signs
# (engine/fault_tolerance/watchdog.py)
SIGNS = 120.0
PATIENCE = 300.0  # seconds, or ten rounds, that a run without such files may be silent
RUNNING, STALE, EARLY, DAMAGED, NOT_STARTED, FAILED = (
    "running",
    "stale",
    "ended early",
    "damaged",
    "not started",
    "failed",
)


@dataclass(frozen=True)
class State:
    """The state of one run; None means not known.

    word: the state.
    since: its beginning, in Unix seconds, if that is of interest.
    rounds, total: rounds done, and those of the job.
    seconds: seconds per round, mean of the last ones.
    left: seconds to the end, for a running run.
    saved: rounds in the last checkpoint, which was written at saved_at.
    metric, value: the run's first metric, and its mean over clients in the last evaluated round.
    accuracy: the same value if that metric is the accuracy.
    """

    word: str
    since: float | None = None
    rounds: int = 0
    total: int | None = None
    accuracy: float | None = None
    seconds: float | None = None
    left: float | None = None
    saved: int | None = None
    saved_at: float | None = None
    why: str = ""
    metric: str = "accuracy"
    value: float | None = None

    @property
    def pruned(self) -> bool:
        """Whether the run was ended because it is hopeless, so that it is never continued."""
        return self.word == STOPPED and self.why.startswith(sweeps.PRUNED)


def state(run: Path, rounds: int = 0) -> State:
    """Return the state of the run in this folder, or of the result file at this path.

    rounds: of its sweep, which may have got more since the run was finished; 0: of its own job.
    """
    folder = names.folder_of(run)
    try:
        record = load(run)
    except CheckpointError as error:
        exists = os.path.exists(names.results_file(folder))
        return State(DAMAGED, why=first_line(error)) if exists else State(NOT_STARTED)
    return of(record, folder, rounds)


def of(record: Record, folder: Path, rounds: int = 0) -> State:
    """Return the state of the run in this folder, given its record, and the rounds as `state`."""
    total = max(rounds, record.header["job"]["rounds"])
    word, since = current_state(record, folder, time(), total)
    facts = progress(record) | {"total": total}
    running = word == RUNNING and facts["seconds"] is not None
    left = (facts["total"] - record.rounds) * facts["seconds"] if running else None
    return State(word, since, left=left, **facts, **last_checkpoint(folder))


def current_state(
    record: Record, folder: Path, now: float, rounds: int
) -> tuple[str, float | None]:
    """Return whether a run of these rounds is finished, running or ended early, and since when.

    A run whose ranks are killed leaves its lock, whose holder is known to be dead at once on the
    same machine, and heartbeat files, which become old; one that ends in order removes both. A run
    within another program, as hpcfed.run in a notebook, writes no heartbeat.
    """
    if has_finished(record, rounds):
        return FINISHED, modified_at(record.path)
    signs = [
        when
        for path in glob_folder(names.watch_folder(folder), "*.json")
        if (when := modified_at(path))
    ]
    if signs:
        killed = os.path.exists(names.lock_file(folder)) and lock.find_holder(folder) is None
        fresh = now - max(signs) < SIGNS and not killed
        return (RUNNING, None) if fresh else (STALE, max(signs))
    if lock.find_holder(folder):
        return RUNNING, None
    last = modified_at(record.path)
    if record.header.get("ended"):
        return STOPPED, last
    if record.header["job"].get("run", {}).get("watchdog"):
        return EARLY, last
    patience = max(PATIENCE, RECENT * (seconds_of(record) or 0.0))
    return (STALE, last) if last is None or now - last > patience else (RUNNING, None)


def modified_at(path: Path) -> float | None:
    """Return when a file was last written; None if there is none."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def progress(record: Record) -> dict[str, Any]:
    """Return the fields of `State` that follow from the record alone."""
    metric = main_metric(record)
    value = summary_statistics(last(record, f"clients/{metric}"))["mean"]
    return {
        "rounds": record.rounds,
        "accuracy": value if metric == "accuracy" else None,
        "seconds": seconds_of(record),
        "metric": metric,
        "value": value,
    }


def seconds_of(record: Record) -> float | None:
    """Return the seconds of a round, mean of the last ones."""
    seconds = by_round(record, "seconds")[-RECENT:]
    return float(np.nanmean(seconds)) if np.isfinite(seconds).any() else None


def last_checkpoint(folder: Path) -> dict[str, Any]:
    newest = checkpoint.newest(folder)
    return (
        {"saved": checkpoint.rounds_of(newest), "saved_at": modified_at(newest)} if newest else {}
    )


def member(sweep: sweeps.Sweep, run: sweeps.Member) -> State:
    """Return the state of a run of a sweep."""
    return add_sweep_end(sweep, run, state(sweep.folder / run.name, run.fields["rounds"]))


def add_sweep_end(sweep: sweeps.Sweep, run: sweeps.Member, current: State) -> State:
    """Return the state with the outcome that the sweep recorded, unless the run is finished."""
    end = sweeps.last_end(sweep, run.name)
    if current.word == NOT_STARTED:
        current = replace(current, total=run.fields["rounds"])
    if end is None or current.word == FINISHED:
        return current
    pruned = end.line if end.line.startswith(sweeps.PRUNED) else ""
    word = STOPPED if pruned or end.status == RESUME_ME else FAILED
    why = pruned if word == STOPPED else f"status {end.status}: {end.line}"
    return replace(current, word=word, since=end.when, why=why, left=None)


def words(one: State) -> str:
    """Return the state as text: `stopped since 2026-11-21 19:30`."""
    when = "" if one.since is None else strftime("%Y-%m-%d %H:%M", localtime(one.since))
    texts = {FINISHED: f"{one.word} {when}", STALE: f"{one.word}, no sign since {when}"}
    return texts.get(one.word, f"{one.word} since {when}" if when else one.word) + (
        f", {printable(one.why)}" if one.why else ""
    )
