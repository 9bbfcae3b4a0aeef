"""Where a run stands, from its files alone: how far it is, and whether anybody is still at it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from hpcfed.core.errors import CheckpointError, first_line
from hpcfed.core.paths import glob_folder
from hpcfed.results.columns import by_round
from hpcfed.results.summary import accuracy
from hpcfed.storage import checkpoint, names
from hpcfed.storage.record import FINISHED, STOPPED, Record, load

RECENT = 10  # rounds whose mean time is taken for the next ones'
# seconds within which the ranks of a run that goes on renew their signs (engine/watchdog.py), twice
# over
SIGNS = 120.0
PATIENCE = 300.0  # seconds, or ten rounds, in which a run without such signs may write nothing
GOING_ON, STALE, EARLY, DAMAGED, NOT_BEGUN = (
    "going on",
    "stale",
    "ended early",
    "damaged",
    "not begun",
)


@dataclass(frozen=True)
class State:
    """One run: word, and since when (Unix seconds) where that tells something.

    rounds of total are done; seconds: of a round, mean of the last ones; left: seconds, of a run
    that goes on.
    saved: rounds in the last checkpoint, which was written at saved_at.  None: not known.
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


def state(run: Path) -> State:
    """The state of the run in this folder, or of the result file at this path."""
    folder = names.folder_of(run)
    try:
        record = load(run)
    except CheckpointError as error:
        there = os.path.exists(names.results_file(folder))
        return State(DAMAGED, why=first_line(error)) if there else State(NOT_BEGUN)
    return of(record, folder)


def of(record: Record, folder: Path) -> State:
    """The state of the run in this folder, of which this was read."""
    word, since = current_state(record, folder, time())
    known = progress(record)
    going_on = word == GOING_ON and known["seconds"] is not None
    left = (known["total"] - record.rounds) * known["seconds"] if going_on else None
    return State(word, since, left=left, **known, **last_checkpoint(folder))


def current_state(record: Record, folder: Path, now: float) -> tuple[str, float | None]:
    """Whether a run is done, goes on, or has ended before its time, and since when.

    A run whose ranks are killed leaves their signs behind, which age; one that ends in order takes
    them away.
    """
    if complete(record):
        return FINISHED, modified_at(record.path)
    signs = [
        when
        for path in glob_folder(names.watch_folder(folder), "*.json")
        if (when := modified_at(path))
    ]
    if signs:
        return (GOING_ON, None) if now - max(signs) < SIGNS else (STALE, max(signs))
    last = max(
        filter(None, map(modified_at, (record.path, names.journal_file(record.path)))), default=None
    )
    if record.header.get("ended"):
        return STOPPED, last
    if record.header["job"].get("run", {}).get("watchdog"):
        return EARLY, last
    patience = max(PATIENCE, RECENT * (seconds_of(record) or 0.0))
    return (STALE, last) if last is None or now - last > patience else (GOING_ON, None)


def complete(record: Record) -> bool:
    """Whether all rounds of the job are done."""
    return record.rounds >= record.header["job"]["rounds"]


def modified_at(path: Path) -> float | None:
    """When a file was last written; None where there is none."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def progress(record: Record) -> dict[str, Any]:
    """What the rounds so far tell."""
    mean = accuracy(record)["mean"]
    total = record.header["job"]["rounds"]
    return {
        "rounds": record.rounds,
        "total": total,
        "accuracy": mean,
        "seconds": seconds_of(record),
    }


def seconds_of(record: Record) -> float | None:
    """Seconds of a round: the mean of the last ones."""
    known = by_round(record, "seconds")[-RECENT:]
    return float(np.nanmean(known)) if np.isfinite(known).any() else None


def last_checkpoint(folder: Path) -> dict[str, Any]:
    newest = checkpoint.newest(folder)
    return (
        {"saved": checkpoint.rounds_of(newest), "saved_at": modified_at(newest)} if newest else {}
    )
