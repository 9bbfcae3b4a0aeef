"""The view of one run: numbers of its record, and its warnings so far."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.core.errors import WARNING, printable
from hpcfed.core.paths import tail
from hpcfed.core.wording import count_noun, join_few
from hpcfed.results.columns import (
    architectures,
    column,
    faults,
    last,
    main_metric,
    mean_and_std,
    name_client,
    phases,
    rounds_with_values,
)
from hpcfed.results.run import Run
from hpcfed.results.state import FAILED, RECENT, State
from hpcfed.results.summary import title
from hpcfed.storage import names
from hpcfed.storage import sweep as sweeps
from hpcfed.storage.record import FINISHED, Record

FEW = 5  # clients that are named
TAIL = 65536  # bytes at the end of a log that are searched


@dataclass(frozen=True)
class View:
    """The view of a run. Times are in seconds; metrics are the run's first one.

    evaluated: numbers of the rounds with an evaluation.
    mean, std: of the clients' metric, in each of these.
    loss: [T], mean training loss of the round's clients.
    phases: [R] by phase, seconds of a round, mean of the last ones.
    clients, kinds: metric and architecture of each client when it was last evaluated.
    record: the record from which the view was made; None if there is none yet.
    """

    name: str
    state: State
    record: Record | None = None
    title: str = ""
    evaluated: list[int] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)
    clients: np.ndarray = field(default_factory=lambda: np.zeros(0))
    kinds: np.ndarray = field(default_factory=lambda: np.zeros(0, str))
    warnings: list[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether the view is final.

        All rounds are done, or the run failed in its sweep, or was pruned.
        """
        return self.state.word in (FINISHED, FAILED) or self.state.pruned


def look(run: Run, before: View | None = None) -> View:
    """Return the view of the run as its files are now.

    before: the last view, from which unchanged parts are taken.
    """
    run.refresh()
    now = run.state
    now = replace(now, why=printable(now.why))
    if not run.begun:  # not started, or damaged: the state says which
        return View(printable(run.name), now)
    if before and before.record is run.record:
        return replace(before, state=now)
    texts = list(map(printable, warnings(run.record, run.folder)))
    return View(printable(run.name), now, run.record, **numbers(run.record), warnings=texts)


def numbers(record: Record) -> dict[str, Any]:
    """Return the fields of a view from a record."""
    done, metric = rounds_with_values(record), main_metric(record)
    mean, std = mean_and_std(column(record, f"clients/{metric}")[done])
    return {
        "title": title(record),
        "evaluated": (done + 1).tolist(),
        "mean": mean.tolist(),
        "std": std.tolist(),
        "loss": mean_and_std(column(record, "clients/train_loss"))[0].tolist(),
        "seconds": record.columns.get("rounds/seconds", np.zeros(0)).tolist(),
        "phases": recent_phases(record),
        "clients": last(record, f"clients/{metric}"),
        "kinds": architectures(record),
    }


def recent_phases(record: Record) -> dict[str, list[float]]:
    """Return seconds of each phase by rank, mean over the last rounds.

    Ranks are those of the last round.
    """
    recent = {phase: seconds[-RECENT:] for phase, seconds in phases(record).items()}
    recent = {phase: seconds for phase, seconds in recent.items() if len(seconds)}
    if not recent:
        return {}
    present = np.any([np.isfinite(seconds[-1]) for seconds in recent.values()], axis=0)
    finite = {phase: np.isfinite(seconds) for phase, seconds in recent.items()}
    means = {
        phase: np.where(finite[phase], seconds, 0.0).sum(0) / finite[phase].sum(0).clip(min=1)
        for phase, seconds in recent.items()
    }
    return {phase: mean[present].tolist() for phase, mean in means.items()}


def warnings(record: Record, folder: Path) -> list[str]:
    """Return warnings in the order of rounds, then those in the log of a sweep's run."""
    events = sorted([*restarts(record), *left(record)])
    return [text for _, text in events] + last_log_warning(folder)


def restarts(record: Record) -> Iterator[tuple[int, str]]:
    """Yield a sentence for each resume from a checkpoint, with the rounds done then."""
    history = record.header.get("history", [])
    ranks = [part.get("ranks") for part in history] + [record.header.get("ranks")]
    for part, before, after in zip(history, ranks, ranks[1:], strict=False):
        change = "" if before == after else f", on {count_noun(after, 'rank')} after {before}"
        yield part["rounds"], f"continued after round {part['rounds']} from a checkpoint{change}"


def left(record: Record) -> Iterator[tuple[int, str]]:
    """Yield a sentence on clients that left a round, for each round."""
    for t, lost in groupby(faults(record), itemgetter(0)):
        clients = [f"{name_client(record, k)} ({how})" for _, k, how in lost]
        yield t, f"round {t}: left out: client {join_few(clients, FEW)}"


def last_log_warning(folder: Path) -> list[str]:
    """Return the last warning in the log of a sweep's run; empty for other runs."""
    path = names.log_file(folder.parent, folder.name)
    if not sweeps.exists(folder.parent) or not os.path.isfile(path):
        return []
    lines = [
        line.partition(WARNING)[2] for line in tail(path, TAIL).splitlines() if WARNING in line
    ]
    return lines[-1:]
