"""Warnings that a reader should know before using a run's numbers, from the run's own record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hpcfed.core.wording import count_noun, join_few
from hpcfed.report.page.job import environment, environments
from hpcfed.results.columns import (
    faults,
    last,
    main_metric,
    name_client,
    rounds_with_values,
    title_metric,
)
from hpcfed.results.one_class import one_class
from hpcfed.results.run import Run
from hpcfed.results.state import FINISHED, State, words
from hpcfed.storage.record import Record

FEW = 8  # items of one type that are named; the others are counted


def notes(runs: Sequence[Run], absent: Sequence[str], states: bool = True) -> list[tuple[str, str]]:
    """Return warnings: the runs concerned ("" for none in particular), and the sentence.

    absent: a sentence for each run without results.
    states: whether the states of unfinished runs are included.
    """
    whose: dict[str, list[str]] = {}
    for run in runs:
        for text in of_run(run, states):
            whose.setdefault(text, []).append(run.name)
    warnings = [(join_few(names, FEW), text) for text, names in whose.items()]
    return [*(("", text) for text in absent), *warnings, *(("", text) for text in between(runs))]


def of_run(run: Run, states: bool = True) -> Iterator[str]:
    """Yield warnings in the order of a run's life, after that on its end."""
    if states and (unfinished := describe_state(run.state)):
        yield unfinished
    yield from commit(run.record.header)
    yield from starts(run.record.header)
    yield from ranks(run.record)
    yield from filter(None, [one_class(run.record)])
    yield from clients(run.record)


def describe_state(state: State) -> str:
    """Return a state as a sentence, "" for a finished run."""
    if state.word == FINISHED:
        return ""
    total = "" if state.total is None else f", {state.rounds} of {state.total} rounds are done"
    return words(state) + total


def commit(header: dict[str, Any]) -> Iterator[str]:
    if header.get("commit", "").endswith("+"):
        yield "hpcfed had changes that were not committed: the commit named below is not all of it"


def starts(header: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each resume, with changes of the environment."""
    times = [*header.get("history", []), header]
    for before, after in pairwise(times):
        old, new = environment(before), environment(after)
        other = [
            f"{name} {old.get(name, 'unknown')}, then {new.get(name, 'unknown')}"
            for name in new
            if name in old and old[name] != new[name]
        ]
        yield f"resumed after round {before['rounds']}" + (
            f"; {join_few(other, FEW, '; ')}" if other else ""
        )


def ranks(record: Record) -> Iterator[str]:
    """Yield a sentence for each round from which the run had fewer ranks than before.

    Ranks had died, or the run was resumed on fewer.
    """
    column = record.columns.get("ranks/train")
    if column is None or column.ndim < 2:
        return
    n_ranks = np.isfinite(column).sum(1)
    for t in np.flatnonzero(np.diff(n_ranks) < 0) + 1:
        yield (
            f"from round {t + 1} on the run had {count_noun(int(n_ranks[t]), 'rank')}, before that "
            f"{n_ranks[t - 1]}"
        )


def clients(record: Record) -> Iterator[str]:
    """Yield sentences on clients that were lost, failed, or have no accuracy."""
    lost = record.columns.get("clients/lost")
    if lost is not None and np.nansum(lost):
        yield (
            f"clients lost: {count_noun(int(np.nansum(lost)), 'time')} in "
            f"{count_noun(int((np.nansum(lost, 1) > 0).sum()), 'round')}"
        )
    yield from failure_notes(record)
    if not len(rounds_with_values(record)):
        yield f"no {title_metric(main_metric(record))} was recorded"
    elif "clients/id" not in record.columns:
        main = main_metric(record)
        without = np.flatnonzero(~np.isfinite(last(record, f"clients/{main}")))
        if len(without):
            yield (
                f"no {title_metric(main)} in the last evaluated round, so not in its mean: clients "
                f"{join_few(without.tolist(), FEW)}"
            )


def failure_notes(record: Record) -> Iterator[str]:
    """Yield sentences on clients that failed and left a round, by type of failure."""
    places: dict[str, list[str]] = {}
    for t, k, how in faults(record):
        places.setdefault(how, []).append(f"client {name_client(record, k)} in round {t}")
    for how, occasions in places.items():
        yield f"clients that failed and left the round ({how}): {join_few(occasions, FEW)}"


def between(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a sentence on differences of environments on which numbers may depend."""
    parted = environments(runs)
    other = [
        field
        for field in parted.differs
        if field == "commit" or field.startswith(("versions.", "hardware."))
    ]
    if other:
        yield (
            f"runs differ in {join_few(other, FEW)}; equal jobs may give other bits there, and "
            f"times do not compare"
        )
