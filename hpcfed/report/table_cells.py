"""The cells of a table: mean and deviation of a cell's runs, and notes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcfed.report.cases import MACHINE, SEED, refuse_same_seed
from hpcfed.report.formats import Shown
from hpcfed.report.measures import Measure, View
from hpcfed.results.run import Run

PLUS_MINUS = {
    "seeds": "sample standard deviation (n - 1) over seeds",
    "clients": "standard deviation over clients",
}
DEVIATIONS = (*PLUS_MINUS, "none")


def cell(group: list[Run], view: View, seeds: int) -> Shown:
    """Return mean and deviation over the runs of a cell, with a note on missing ones."""
    refuse_same_seed("table", group, "one cell", MACHINE)
    numbers = [(run, *view.measure.of(run.record)) for run in group if run.finished]
    present = [(mean, std) for _, mean, std in numbers if mean is not None]
    absent = [run.absence()[0] for run in group if not run.finished]
    absent += [why_empty(run, view.measure) for run, mean, _ in numbers if mean is None]
    if not present:
        return Shown(
            "",
            "",
            ", ".join(dict.fromkeys(absent)) if group else "no run",
            seeds=0,
            runs=len(group),
        )
    mean = float(np.mean([mean for mean, _ in present]))
    std = compute_deviation(present, view.deviation)
    note = (
        absence_note(absent, len(present), len(group))
        if absent
        else f"n = {len(present)}"
        if len(group) < seeds
        else ""
    )
    places = view.places([mean], std or 0.0)
    shown, deviation = ("", None) if std is None else (view.number(std, places), view.scale(std))
    return Shown(
        view.number(mean, places),
        shown,
        note,
        view.scale(mean),
        deviation,
        len(present),
        len(group),
        seed_numbers=tuple(
            sorted(run.fields[SEED] for run, mean, _ in numbers if mean is not None)
        ),
        places=places,
    )


def why_empty(run: Run, measure: Measure) -> str:
    """Return in a few words why a finished run has no number."""
    return (measure.absence(run.record) if measure.absence else "") or "not recorded"


def absence_note(absent: list[str], n: int, runs: int) -> str:
    """Return a note on runs that are missing in a cell with a number."""
    return (
        f"{n} of {runs}; "
        f"{', '.join(f'{absent.count(word)} {word}' for word in dict.fromkeys(absent))}"
    )


def compute_deviation(numbers: list[tuple[float, float | None]], deviation: str) -> float | None:
    """Return the deviation; None if there is none.

    That is with a single seed, for a number that is not of clients, or if it is not asked for.
    """
    if deviation == "clients":
        stds = [std for _, std in numbers if std is not None]
        return float(np.mean(stds)) if stds else None
    several = deviation == "seeds" and len(numbers) > 1
    return float(np.std([mean for mean, _ in numbers], ddof=1)) if several else None


def mark_best(table: list[list[Shown]], high: bool) -> list[list[Shown]]:
    """Return the table with the best cell of each column marked, if there are several.

    All cells that are equal to the best one in the decimals shown are marked. None is marked in a
    column whose cells have no seed in common, because each seed has its own partition.
    """
    for column in zip(*table, strict=True):
        cells = [cell for cell in column if cell.mean is not None]
        if len(cells) > 1 and set.intersection(*({*cell.seed_numbers} for cell in cells)):
            top = (max if high else min)(cells, key=lambda cell: cell.mean)
            for cell in cells:
                cell.best = cell.equals(top)
    return table


def caption(what: str, deviation: str, seeds: int, table: Sequence[Sequence[Shown]]) -> str:
    """Return a description of the numbers."""
    over = f"mean over {seeds} seeds" if seeds > 1 else "one seed"
    spread = any(cell.std for row in table for cell in row)
    each = " of each run, mean over seeds" if deviation == "clients" and seeds > 1 else ""
    return f"{what}; {over}" + (f" ± {PLUS_MINUS[deviation]}{each}" if spread else "")
