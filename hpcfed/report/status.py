"""`hpcfed status RUN...`: how far runs are, and whether they go on; read from their files alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import localtime, strftime, time
from typing import Any

from rich.table import Table

from hpcfed.core.errors import CheckpointError, printable
from hpcfed.core.status import RESUME_ME
from hpcfed.core.tables import duration, table
from hpcfed.results.state import NOT_BEGUN, STALE, State, state
from hpcfed.results.summary import share
from hpcfed.storage import sweep as store
from hpcfed.storage.record import FINISHED, STOPPED

FAILED = "failed"
HEADS = "run,>round,>accuracy,>a round,>left,last checkpoint,state"


def status(runs: Sequence[Path], json: bool = False) -> list[dict[str, Any]] | Table:
    """The command: a line for each run, and for each run of a sweep."""
    found = [(name, one) for run in runs for name, one in states(run)]
    if json:
        return [{"run": name, **asdict(one)} for name, one in found]
    now = time()
    return table(HEADS, [row(name, one, now) for name, one in found])


def states(path: Path) -> Iterator[tuple[str, State]]:
    """The run at this path, or those of the sweep there."""
    for run, of in store.runs(check_exists(path)):
        yield str(run), member(*of) if of else state(run)


def check_exists(path: Path) -> Path:
    """The path; CheckpointError where nothing is there."""
    if not os.path.exists(path):
        raise CheckpointError(
            f"{path}: there is no such file or folder; give the folder of a run or of a sweep "
            "(a job that waits in a queue makes it when it begins)"
        )
    return path


def member(sweep: store.Sweep, run: store.Member) -> State:
    """A run of a sweep."""
    return add_sweep_end(sweep, run, state(sweep.folder / run.name))


def add_sweep_end(sweep: store.Sweep, run: store.Member, found: State) -> State:
    """The state of a run of a sweep, whose end is noted there where it was no success."""
    end = store.last_end(sweep, run.name)
    if found.word == NOT_BEGUN:
        found = replace(found, total=run.fields["rounds"])
    if end is None or found.word == FINISHED:
        return found
    word = STOPPED if end.status == RESUME_ME else FAILED
    why = "" if word == STOPPED else f"status {end.status}: {end.line}"
    return replace(found, word=word, since=end.when, why=why, left=None)


def row(name: str, one: State, now: float) -> tuple[str, ...]:
    """A run as cells of the table."""
    total = "" if one.total is None else f"{one.rounds}/{one.total}"
    saved = "-" if one.saved is None else f"round {one.saved}" + ago(one.saved_at, now)
    times = ("-" if seconds is None else duration(seconds) for seconds in (one.seconds, one.left))
    return name, total, share(one.accuracy), *times, saved, words(one)


def ago(when: float | None, now: float) -> str:
    return "" if when is None else f", {duration(max(0.0, now - when))} ago"


def words(one: State) -> str:
    """The state as people read it: `stopped since 2026-11-21 19:30`."""
    when = "" if one.since is None else strftime("%Y-%m-%d %H:%M", localtime(one.since))
    told = {FINISHED: f"{one.word} {when}", STALE: f"{one.word}, no sign since {when}"}
    return told.get(one.word, f"{one.word} since {when}" if when else one.word) + (
        f", {printable(one.why)}" if one.why else ""
    )
