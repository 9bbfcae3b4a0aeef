"""The cells of a table: mean and deviation of a cell's runs, and notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hpcfed.core.wording import count_range, join_few
from hpcfed.report.cases import MACHINE, SEED, refuse_same_seed
from hpcfed.report.formats import Shown
from hpcfed.report.measures import Measure, View
from hpcfed.results.run import Run

PLUS_MINUS = {
    "seeds": "sample standard deviation (n - 1) over seeds",
    "clients": "standard deviation over clients",
}
DEVIATIONS = (*PLUS_MINUS, "none")
FEW = 8  # cells that a note names


def cell(group: list[Run], view: View, seeds: int) -> Shown:
    """Return mean and deviation over the runs of a cell, with a note on missing ones."""
    refuse_same_seed("table", group, "one cell", MACHINE)
    numbers = [view.measure.of(run.record) for run in group if run.finished]
    present = [(mean, std) for mean, std in numbers if mean is not None]
    absent = [run.absence()[0] for run in group if not run.finished] + ["not recorded"] * (
        len(numbers) - len(present)
    )
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
        places=places,
    )


def client_numbers_note(where: str, cells: Iterable[tuple[str, Sequence[Run], Measure]]) -> str:
    """Return a note if cells are means over different numbers of clients, else "".

    where: what the cells have in common, such as a column; "" for nothing.
    cells: that are compared with one another: label, runs and measure of each.
    Clients without a value are counted seed by seed, because other seeds have other examples.
    """
    numbers, missing = dict[str, list[int]](), dict[tuple[str, ...], set[int]]()
    for label, runs, measure in cells:
        each = measure.each or (lambda record: {})
        for run in (run for run in runs if run.finished):
            if n := len(each(run.record)):
                numbers.setdefault(label, []).append(n)
                missing.setdefault(run.at([SEED]), set()).add(run.fields.get("clients", n) - n)
    if all(len(counts) == 1 for counts in missing.values()):
        return ""
    counted = [f"{label} {count_range(ns, 'client')}" for label, ns in numbers.items()]
    return (
        f"{where}{': ' * bool(where)}means over different numbers of clients, because not all "
        f"have a value: {join_few(counted, FEW)}"
    )


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

    All cells that are equal to the best one in the decimals shown are marked.
    """
    for column in zip(*table, strict=True):
        cells = [cell for cell in column if cell.mean is not None]
        if len(cells) > 1:
            top = (max if high else min)(cells, key=lambda cell: cell.mean)
            for cell in cells:
                cell.best = cell.equals(top)
    return table


def caption(what: str, deviation: str, seeds: int) -> str:
    """Return a description of the numbers."""
    over = f"mean over {seeds} seeds" if seeds > 1 else "one seed"
    spread = deviation == "clients" or (deviation == "seeds" and seeds > 1)
    each = " of each run, mean over seeds" if deviation == "clients" and seeds > 1 else ""
    return f"{what}; {over}" + (f" ± {PLUS_MINUS[deviation]}{each}" if spread else "")
