"""`hpcfed table SWEEP...`: methods against data sets, as the tables of papers are; from result files alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcfed.errors import ConfigError
from hpcfed.report.cases import SEED, Case, axes, cases, skewed
from hpcfed.report.formats import FORMATS, Grid, Shown, stored
from hpcfed.report.measures import View, measure

PLUS_MINUS = {
    "seeds": "sample standard deviation (n - 1) over seeds",
    "clients": "standard deviation over clients",
}


def table(runs: Sequence[Path], rows: str | None = None, columns: str | None = None, value: str = "accuracy",
            deviation: str = "seeds", percent: bool = False, format: str = "text", out: Path | None = None,
            ) -> str:  # fmt: skip
    """The command. rows, columns: fields of the job, separated by commas; what is not given is chosen.

    Returns the table, or the path of the file that it was written to.
    """
    view = View(value, measure(value), deviation, percent)
    chosen = [names.split(",") if names else None for names in (rows, columns)]
    found = skewed(cases(runs), [name for names in chosen for name in names or []])
    return stored("table", FORMATS[format](grid(found, *axes(found, *chosen), view)), out)


def grid(found: list[Case], down: list[str], across: list[str], view: View) -> Grid:
    """The cells, row by row, and what is to be said about them."""
    lines, heads = ordered(found, down), ordered(found, across)
    cells = [[[case for case in found if (case.at(down), case.at(across)) == (r, c)] for c in heads] for r in lines]
    seeds = max(len(group) for row in cells for group in row)
    table = [[cell(group, view, seeds) for group in row] for row in cells]
    notes = [f"{case.name}: {case.why}" for case in found if case.why]
    return Grid(caption(view, seeds), view.value, down, across, lines, heads, marked(table, view.measure.high), notes)


def ordered(found: list[Case], names: list[str]) -> list[tuple[str, ...]]:
    """The values of these fields: the first field's in the order of the runs, within each the next one's."""
    known = list(dict.fromkeys(case.at(names) for case in found))
    place = [list(dict.fromkeys(values)) for values in zip(*known, strict=True)]
    return sorted(known, key=lambda values: [order.index(value) for order, value in zip(place, values, strict=True)])


def cell(group: list[Case], view: View, seeds: int) -> Shown:
    """Mean and deviation over the runs of a cell; what is absent is said."""
    twice = {seed: name for seed, name in ((case.at([SEED]), case.name) for case in group)}
    if len(twice) < len(group):
        names = ", ".join(case.name for case in group)
        raise ConfigError(f"table: two runs of one cell have the same seed: {names}; give one of them")
    found = [view.measure.of(case.record) for case in group if case.record]
    known = [numbers for numbers in found if numbers[0] is not None]
    absent = [case.short for case in group if not case.record] + ["not recorded"] * (len(found) - len(known))
    if not known:
        return Shown("", "", ", ".join(dict.fromkeys(absent)) if group else "no run", seeds=0, runs=len(group))
    mean, std = np.mean([numbers[0] for numbers in known]), spread(known, view.deviation)
    note = told(absent, len(known), len(group)) if absent else f"n = {len(known)}" if len(group) < seeds else ""
    shown = "" if std is None else view.number(std)
    return Shown(view.number(mean), shown, note, float(mean), std, len(known), len(group))


def told(absent: list[str], n: int, runs: int) -> str:
    """What is missing in a cell that has a number."""
    return f"{n} of {runs}; {', '.join(f'{absent.count(word)} {word}' for word in dict.fromkeys(absent))}"


def spread(known: list[tuple[float | None, float | None]], deviation: str) -> float | None:
    """The deviation; None where there is none to tell: over one seed, or of a number that is not one of clients."""
    if deviation == "clients":
        stds = [std for _, std in known if std is not None]
        return float(np.mean(stds)) if stds else None
    return float(np.std([mean for mean, _ in known], ddof=1)) if len(known) > 1 else None


def marked(table: list[list[Shown]], high: bool) -> list[list[Shown]]:
    """The table with the best of each column marked, where there are several; all that are equal as they are shown."""
    for column in zip(*table, strict=True):
        known = [cell for cell in column if cell.mean is not None]
        if len(known) > 1:
            top = (max if high else min)(known, key=lambda cell: cell.mean)
            for cell in known:
                cell.best = cell.text == top.text
    return table


def caption(view: View, seeds: int) -> str:
    """What the numbers are."""
    over = f"mean over {seeds} seeds" if seeds > 1 else "one seed"
    told = view.deviation == "clients" or seeds > 1
    each = " of each run, mean over seeds" if view.deviation == "clients" and seeds > 1 else ""
    return f"{view.what()}; {over}" + (f" ± {PLUS_MINUS[view.deviation]}{each}" if told else "")
