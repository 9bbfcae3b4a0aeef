"""Which runs a page shows, and what they are called there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfed.errors import CheckpointError
from hpcfed.report.state import FINISHED, NOT_BEGUN, State, going
from hpcfed.report.status import member, words
from hpcfed.storage import names
from hpcfed.storage import sweep as store
from hpcfed.storage.record import Record, load

RESULTS = names.results_file(Path()).name


@dataclass(frozen=True)
class Shown:
    """One run. name: unique on the page. why: how it ended, in words, where it is not finished."""

    name: str
    record: Record
    why: str = ""

    @property
    def job(self) -> dict[str, Any]:
        return self.record.header["job"]


def shown(paths: Sequence[Path], now: float) -> tuple[list[Shown], list[str]]:
    """All runs of these folders, result files and sweeps, each once; and a sentence for each that has no results.

    now: Unix seconds. Raises CheckpointError for a path that has no readable results, as `load` does.
    """
    found: dict[str, tuple[Path, Record, str]] = {}
    absent: dict[str, str] = {}
    for place in paths:
        for path, record, why in within(place, now):
            if record is None:
                absent.setdefault(os.path.realpath(path), f"{path}: {why}")
            else:
                found.setdefault(os.path.realpath(record.path), (path, record, why))
    called = unique([path for path, _, _ in found.values()])
    seen = [Shown(name, record, why) for name, (_, record, why) in zip(called, found.values(), strict=True)]
    return seen, list(absent.values())


def within(place: Path, now: float) -> Iterator[tuple[Path, Record | None, str]]:
    """The run at this path, or those of the sweep there, each with what `Shown.why` says."""
    if not store.exists(place):
        record = load(place)
        yield place, record, why(record, going(record, record.path.parent, now))
        return
    sweep = store.read(place)
    for run in sweep.runs:
        state = member(sweep, run)
        try:
            record = None if state.word == NOT_BEGUN else load(place / run.name)
        except CheckpointError:
            record = None
        yield place / run.name, record, told(state)


def why(record: Record, found: tuple[str, float | None]) -> str:
    word, since = found
    return told(State(word, since, record.rounds, record.header["job"]["rounds"]))


def told(state: State) -> str:
    """A state as a sentence; nothing of a run that is finished."""
    if state.word == FINISHED:
        return ""
    total = "" if state.total is None else f", {state.rounds} of {state.total} rounds are done"
    return words(state) + total


def unique(paths: list[Path]) -> list[str]:
    """A name for each path: that of its folder, or of its file, with as much of the path as tells them apart."""
    whole = [(path.parent if path.name == RESULTS else path.with_suffix("") if path.suffix == ".h5" else path).resolve()
             for path in paths]  # fmt: skip
    depth = [1] * len(whole)
    while True:
        called = ["/".join(path.parts[-d:]) for path, d in zip(whole, depth, strict=True)]
        twice = {name for name, n in Counter(called).items() if n > 1}
        deeper = [d + (name in twice and d < len(path.parts))
                  for d, name, path in zip(depth, called, whole, strict=True)]  # fmt: skip
        if deeper == depth:
            return called
        depth = deeper
