"""Runs of figures, and their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcfed.core.errors import CheckpointError
from hpcfed.core.wording import count_noun, join_few
from hpcfed.report.cases import one_skew
from hpcfed.report.naming import Names, find_named
from hpcfed.results.run import Run, name_runs
from hpcfed.storage import names


def load_runs(paths: Sequence[Path | Run], names_of: Names = None) -> list[Run]:
    """Return the runs at these paths, and those of the sweeps among them that have done a round.

    They are those of `load_with_notes`.
    """
    return load_with_notes(paths, names_of)[0]


def load_with_notes(
    paths: Sequence[Path | Run], names_of: Names = None
) -> tuple[list[Run], tuple[str, ...]]:
    """Return the runs at these paths, and notes on those of sweeps that have done no round.

    Each is returned once, with a name that distinguishes it, in the order of `find_named`.
    names_of: methods and data. Raises CheckpointError for a run
    without readable results, or a sweep of which no run has any.
    """
    all_runs = find_named(paths, names_of)
    runs = [run for run in all_runs if run.member is None or has_rounds(run)]
    for path in paths:
        if isinstance(path, Run):
            continue
        if os.path.isfile(names.sweep_file(path)) and not any(is_of(run, path) for run in runs):
            raise CheckpointError(
                f"{path}: no run of this sweep has results yet; see `hpcfed status {path}`"
            )
    name_runs(all_runs)
    return runs, left_out([run for run in all_runs if run not in runs])


def not_final(run: Run) -> str:
    """Return why a run's last numbers are not final."""
    return run.absence()[1]


def left_out(runs: Sequence[Run], why: Callable[[Run], str] = not_final) -> tuple[str, ...]:
    """Return a note for each reason why these runs are in no figure.

    why: returns the reason.
    """
    by_reason: dict[str, list[str]] = {}
    for run in runs:
        by_reason.setdefault(why(run), []).append(run.name)
    return tuple(f"left out: {join_few(names, 4)}: {why}" for why, names in by_reason.items())


def has_rounds(run: Run) -> bool:
    """Return whether a run of a sweep has done a round.

    Raises CheckpointError if its results are damaged.
    """
    return names.results_file(run.folder).is_file() and run.record.rounds > 0


def is_of(run: Run, sweep: Path) -> bool:
    """Return whether the run belongs to the sweep in this folder."""
    return run.folder.resolve().parent == sweep.resolve()


def setting(run: Run, ignore: Sequence[str] = ()) -> str:
    """Return a run's data, partition and number of clients as text.

    ignore: fields that are left out.
    """
    fields = one_skew(run.fields)
    halved = 0.0 if "data.halve" in ignore else fields.get("data.halve") or 0.0
    halving = f", {100 * halved:g} % of them halved" if halved else ""
    clients = count_noun(fields["clients"], "client")
    return f"{run.data}, {fields['data.partition']}, {clients}{halving}"


def short(text: str, most: int = 60) -> str:
    """Return a text cut in its middle to this maximum number of letters."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]} … {text[-(most // 2 - 2) :]}"
