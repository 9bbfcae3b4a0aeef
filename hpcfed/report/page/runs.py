"""Which runs a page shows, and what they are called there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfed.core.errors import CheckpointError
from hpcfed.core.few import count_noun
from hpcfed.core.paths import unique_names
from hpcfed.core.progress import track
from hpcfed.report.status import member, words
from hpcfed.results.state import FINISHED, NOT_BEGUN, State, current_state
from hpcfed.storage import names
from hpcfed.storage import sweep as store
from hpcfed.storage.record import Record, load


@dataclass(frozen=True)
class Shown:
    """One run. name: unique on the page. why: how it ended, in words, where it is not finished."""

    name: str
    record: Record
    why: str = ""

    @property
    def job(self) -> dict[str, Any]:
        return self.record.header["job"]


def load_runs(paths: Sequence[Path], now: float) -> tuple[list[Shown], list[str]]:
    """All runs of these folders, result files and sweeps, each once; and a sentence for each that
    has no results.

    now: Unix seconds. Raises CheckpointError for a path that has no readable results, as `load`
    does.
    """
    found: dict[str, tuple[Record, str]] = {}
    absent: dict[str, str] = {}
    members = [member for path in paths for member in store.runs(path)]
    for run, of in track(members, f"reading {count_noun(len(members), 'run')}"):
        record, why = of_sweep(*of) if of else alone(run, now)
        if record is None:
            absent.setdefault(os.path.realpath(run), f"{run}: {why}")
        else:
            found.setdefault(os.path.realpath(record.path), (record, why))
    called = unique_names([names.place_of(record.path) for record, _ in found.values()])
    return [Shown(name, *one) for name, one in zip(called, found.values(), strict=True)], list(
        absent.values()
    )


def alone(run: Path, now: float) -> tuple[Record, str]:
    """A run that is given by itself, with what `Shown.why` says."""
    record = load(run)
    word, since = current_state(record, record.path.parent, now)
    return record, describe_state(State(word, since, record.rounds, record.header["job"]["rounds"]))


def of_sweep(sweep: store.Sweep, run: store.Member) -> tuple[Record | None, str]:
    """A run that a sweep has or should have, as `alone`; None where it has no results."""
    state = member(sweep, run)
    with suppress(CheckpointError):
        if state.word != NOT_BEGUN:
            return load(sweep.folder / run.name), describe_state(state)
    return None, describe_state(state)


def describe_state(state: State) -> str:
    """A state as a sentence; nothing of a run that is finished."""
    if state.word == FINISHED:
        return ""
    total = "" if state.total is None else f", {state.rounds} of {state.total} rounds are done"
    return words(state) + total
