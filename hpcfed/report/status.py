"""`hpcfed status RUN...`: progress of runs, and whether they are running, from their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import time
from typing import Any

from rich.table import Table

from hpcfed.core.errors import ConfigError
from hpcfed.core.tables import duration, table
from hpcfed.core.wording import join_few
from hpcfed.results.columns import format_metric, title_metric
from hpcfed.results.run import Run, find
from hpcfed.results.state import State, words

FEW = 8  # tags that a message names


def status(
    runs: Sequence[Path], json: bool = False, tag: str | None = None
) -> list[dict[str, Any]] | Table:
    """Return a table with a line for each run, and for each run of a sweep.

    tag: only runs that have all of these tags, separated by commas. Raises ConfigError if no run
    has them.
    """
    all_runs = find(runs, required=False)
    wanted = set(tag.split(",")) if tag else set()
    tagged = [run for run in all_runs if wanted <= set(remarks(run)[0])]
    if wanted and not tagged:
        used = sorted({one for run in all_runs for one in remarks(run)[0]})
        raise ConfigError(
            f"status: --tag {tag}: no run has it; tags here: {join_few(used, FEW) or 'none'}"
        )
    rows = [(str(run.path), run.state, *remarks(run)) for run in tagged]
    if json:
        return [
            {"run": name, **asdict(one), "tags": tags, "note": note}
            for name, one, tags, note in rows
        ]
    now, head = time(), metric_head([one for _, one, _, _ in rows])
    heads = f"run,>round,>{head},>a round,>left,last checkpoint,state"
    lines = [row(name, one, now, head) for name, one, _, _ in rows]
    for title, texts in (
        ("tags", [", ".join(tags) for _, _, tags, _ in rows]),
        ("note", [note for *_, note in rows]),
    ):
        if any(texts):
            heads += f",{title}"
            lines = [(*line, text) for line, text in zip(lines, texts, strict=True)]
    return table(heads, lines, named=True)


def remarks(run: Run) -> tuple[list[str], str]:
    """Return the tags and the note of a run."""
    fields = run.fields if run.begun or run.member else {}
    return list(fields.get("tag", ())), fields.get("note", "")


def metric_head(states: Sequence[State]) -> str:
    """Return the head of the column of first metrics: their name, if all runs have the same."""
    names = {one.metric for one in states if one.value is not None}
    return title_metric(names.pop()) if len(names) == 1 else "metric" if names else "accuracy"


def metric_cell(one: State, head: str) -> str:
    """Return the run's first metric, with its name unless the head has it."""
    if one.value is None or head == title_metric(one.metric):
        return format_metric(one.metric, one.value)
    return f"{title_metric(one.metric)} {format_metric(one.metric, one.value)}"


def row(name: str, one: State, now: float, head: str) -> tuple[str, ...]:
    """Return a run's cells of the table."""
    saved = "-" if one.saved is None else f"round {one.saved}" + ago(one.saved_at, now)
    return name, *progress_cells(one, head), saved, words(one)


def progress_cells(one: State, head: str) -> tuple[str, ...]:
    """Return a run's rounds, first metric, seconds of a round and time left.

    head: of the column of metrics.
    """
    times = ("-" if seconds is None else duration(seconds) for seconds in (one.seconds, one.left))
    return format_rounds(one), metric_cell(one, head), *times


def format_rounds(one: State) -> str:
    return f"{one.rounds}/{'?' if one.total is None else one.total}"


def ago(when: float | None, now: float) -> str:
    return "" if when is None else f", {duration(max(0.0, now - when))} ago"
