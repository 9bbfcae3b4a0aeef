"""`hpcfed status RUN...`: how far runs are, and whether they go on; read from their files alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import time
from typing import Any

from rich.table import Table

from hpcfed.core.tables import duration, table
from hpcfed.results.columns import title_metric
from hpcfed.results.run import check_exists
from hpcfed.results.state import State, member, state, words
from hpcfed.results.summary import share
from hpcfed.storage import sweep as store


def status(runs: Sequence[Path], json: bool = False) -> list[dict[str, Any]] | Table:
    """The command: a line for each run, and for each run of a sweep."""
    found = [
        (str(run), member(*of) if of else state(run))
        for path in runs
        for run, of in store.runs(check_exists(path))
    ]
    if json:
        return [{"run": name, **asdict(one)} for name, one in found]
    now, head = time(), metric_head([one for _, one in found])
    heads = f"run,>round,>{head},>a round,>left,last checkpoint,state"
    return table(heads, [row(name, one, now, head) for name, one in found])


def metric_head(states: Sequence[State]) -> str:
    """The head of a column of the runs' first metrics: its name, where all have the same one."""
    names = {one.metric for one in states if one.value is not None}
    return title_metric(names.pop()) if len(names) == 1 else "metric" if names else "accuracy"


def metric_cell(one: State, head: str) -> str:
    """The run's first metric; with its name where the head does not say it."""
    if one.value is None or head == title_metric(one.metric):
        return share(one.value)
    return f"{title_metric(one.metric)} {share(one.value)}"


def row(name: str, one: State, now: float, head: str) -> tuple[str, ...]:
    """A run as cells of the table."""
    total = "" if one.total is None else f"{one.rounds}/{one.total}"
    saved = "-" if one.saved is None else f"round {one.saved}" + ago(one.saved_at, now)
    times = ("-" if seconds is None else duration(seconds) for seconds in (one.seconds, one.left))
    return name, total, metric_cell(one, head), *times, saved, words(one)


def ago(when: float | None, now: float) -> str:
    return "" if when is None else f", {duration(max(0.0, now - when))} ago"
