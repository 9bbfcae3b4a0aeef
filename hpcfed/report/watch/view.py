"""One run as a watcher sees it: numbers of its record, read again whenever its files change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.core.errors import CheckpointError, printable
from hpcfed.core.paths import unique_names
from hpcfed.report.status import FAILED, add_sweep_end, check_exists
from hpcfed.report.watch.warnings import warnings
from hpcfed.results import state
from hpcfed.results.columns import architectures, column, last, rounds_with_values
from hpcfed.results.columns import phases as spent
from hpcfed.results.state import RECENT, State
from hpcfed.results.summary import summary_statistics, title
from hpcfed.storage import names
from hpcfed.storage import sweep as sweeps
from hpcfed.storage.record import FINISHED, Record, load, stamp
from hpcfed.storage.sweep import Member, Sweep


@dataclass(frozen=True)
class View:
    """A run. Accuracies are shares of test examples, times seconds.

    evaluated: numbers of the rounds in which clients were; mean, std: of their accuracies, in each
    of these.
    loss: [T], mean training loss of the round's clients.  phases: [R] by phase, seconds a round, of
    the last ones.
    clients, kinds: accuracy and architecture of each client when it was last evaluated.
    """

    name: str
    state: State
    title: str = ""
    evaluated: list[int] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    phases: dict[str, np.ndarray] = field(default_factory=dict)
    clients: np.ndarray = field(default_factory=lambda: np.zeros(0))
    kinds: np.ndarray = field(default_factory=lambda: np.zeros(0, str))
    warnings: list[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether nothing more will come: all rounds are done, or the run failed in its sweep."""
        return self.state.word in (FINISHED, FAILED)


class Watched:
    """A run that is looked at again and again; it is read anew only where its files have changed.

    member: which run of which sweep it is, if any.
    """

    def __init__(self, path: Path, member: tuple[Sweep, Member] | None = None):
        self.path, self.member, self.name = path, member, ""
        self.folder = names.folder_of(path)
        self.seen: Any = None
        self.known: dict[str, Any] = {}
        self.record: Record | None = None

    def look(self) -> View:
        """The run as it is now."""
        try:
            self.read()
        except CheckpointError:  # not begun, or damaged: the state says which
            self.record, self.known = None, {}
        found = state.of(self.record, self.folder) if self.record else state.state(self.folder)
        found = add_sweep_end(*self.member, found) if self.member else found
        return View(self.name, replace(found, why=printable(found.why)), **self.known)

    def read(self) -> None:
        """Read the files, unless they are those that were read last."""
        seen = stamp(self.path)
        if seen == self.seen and self.record:
            return
        self.record, self.seen = load(self.path), seen
        told = list(map(printable, warnings(self.record, self.folder)))
        self.known = {**numbers(self.record), "warnings": told}


def numbers(record: Record) -> dict[str, Any]:
    """What a view has of a record."""
    done = rounds_with_values(record)
    accuracy = [summary_statistics(row) for row in column(record, "clients/accuracy")[done]]
    return {
        "title": title(record),
        "evaluated": (done + 1).tolist(),
        "mean": [s["mean"] for s in accuracy],
        "std": [s["std"] or 0.0 for s in accuracy],  # to draw: of one client no band
        "loss": [
            nothing(summary_statistics(row)["mean"]) for row in column(record, "clients/train_loss")
        ],
        "seconds": record.columns.get("rounds/seconds", np.zeros(0)).tolist(),
        "phases": phases(record),
        "clients": last(record, "clients/accuracy"),
        "kinds": architectures(record),
    }


def phases(record: Record) -> dict[str, np.ndarray]:
    """[R] by phase: mean seconds a round of the last ones, of the ranks that the last of them
    had.
    """
    recent = {phase: seconds[-RECENT:] for phase, seconds in spent(record).items()}
    recent = {phase: c for phase, c in recent.items() if len(c)}
    if not recent:
        return {}
    there = np.any([np.isfinite(c[-1]) for c in recent.values()], axis=0)
    return {
        phase: np.where(known := np.isfinite(c), c, 0.0).sum(0) / known.sum(0).clip(min=1)
        for phase, c in ((phase, c[:, there]) for phase, c in recent.items())
    }


def nothing(number: float | None) -> float:
    return np.nan if number is None else number


def open_runs(paths: Sequence[Path]) -> list[Watched]:
    """These runs and those of these sweeps; CheckpointError where there is none."""
    runs = [Watched(run, of) for path in paths for run, of in sweeps.runs(check_exists(path))]
    folders = [Path(os.path.abspath(run.folder)) for run in runs]
    for run, name in zip(runs, unique_names(folders), strict=True):
        run.name = printable(name)
    return runs
