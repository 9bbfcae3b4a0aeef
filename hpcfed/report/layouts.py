"""`hpcfed table --layout fedclassavg-2`: runs in the rows and columns of a paper's table.

papers.toml defines the layouts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hpcfed.core.errors import ConfigError, unknown
from hpcfed.report.cases import SEED, conflicting_values
from hpcfed.report.formats import Grid, Shown
from hpcfed.report.measures import View, measure
from hpcfed.report.notes import clients_note, run_notes, seeds_note
from hpcfed.report.table_cells import caption, cell, mark_best
from hpcfed.results.run import Run, format_value
from hpcfed.storage.fields import Fields, flat

FILE = Path(__file__).with_name("papers.toml")


@dataclass(frozen=True)
class Slot:
    """A row or a column.

    where: the fields of its runs.
    setting: other fields that the jobs have, by name.
    value: what it shows, if that is not the table's value.
    paper: of a row, the numbers of the paper's cells.
    """

    label: tuple[str, ...]
    where: Fields
    setting: Fields
    value: str
    paper: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """A table of a paper.

    down, across: titles of rows and columns.
    best: "row" or "column" of which the best cell is marked.
    """

    name: str
    source: str
    caption: str
    down: list[str]
    across: list[str]
    deviation: str
    percent: bool
    best: str
    rows: list[Slot]
    columns: list[Slot]


@cache
def papers() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def layout(name: str) -> Layout:
    """Return the layout of this name. Raises ConfigError for others.

    Fields of the whole table are stored with each row.
    """
    if name not in papers():
        raise ConfigError(f"table: --layout: {unknown('layout', name, papers())}")
    about = dict(papers()[name])
    shared = {part: flat(about.pop(part)) for part in ("where", "setting")}
    value = about.pop("value")
    rows, columns = (
        [slot(each, value) for each in about.pop(part)] for part in ("rows", "columns")
    )
    rows = [
        replace(row, where=shared["where"] | row.where, setting=shared["setting"] | row.setting)
        for row in rows
    ]
    return Layout(name, rows=rows, columns=columns, percent=about.pop("percent", False), **about)


def slot(each: dict[str, Any], value: str) -> Slot:
    paper = tuple(each.get("paper", ()))
    return Slot(
        tuple(each["label"]),
        flat(each["where"]),
        flat(each.get("setting", {})),
        each.get("value", value),
        paper,
    )


def fill_layout(runs: list[Run], design: Layout, paper: bool) -> Grid:
    """Return the table with the results of these runs.

    paper: whether the paper's own numbers are added. Raises ConfigError if no run has a cell, or
    runs of one cell differ in more than their seed.
    """
    groups = [
        [[run for run in runs if fits(run, row, column)] for column in design.columns]
        for row in design.rows
    ]
    for i, row in enumerate(design.rows):
        for j, column in enumerate(design.columns):
            alike(groups[i][j], design, row, column)
    placed = {run.name for line in groups for group in line for run in group}
    if not placed:
        raise ConfigError(
            f"table: --layout {design.name}: none of {len(runs)} runs has a cell in this table; "
            "jobs/README.md has the command that makes its runs"
        )
    seeds = max(len(group) for line in groups for group in line)
    views = [
        View(row.value, measure(row.value), design.deviation, design.percent) for row in design.rows
    ]
    table = [
        [
            replace(cell(group, view, seeds), paper=number if paper else "")
            for group, number in zip(line, row.paper, strict=True)
        ]
        for line, view, row in zip(groups, views, design.rows, strict=True)
    ]
    mark_best(
        table if design.best == "column" else [list(line) for line in zip(*table, strict=True)],
        views[0].measure.high,
    )
    main, *others = dict.fromkeys(view.what() for view in views)
    what = ", and ".join([main, *(other[0].lower() + other[1:] for other in others)])
    description = (
        f"{design.caption} ({design.source}). {caption(what, design.deviation, seeds, table)}"
    )
    description += "; in brackets the paper's" * paper
    # the paper's caption speaks of its own jobs; notes are comments in LaTeX
    description += "".join(f". {note}" for note in otherwise(groups, design))
    labels, heads = ([each.label for each in part] for part in (design.rows, design.columns))
    notes = [*absence_notes(runs, placed), *run_notes([run for run in runs if run.name in placed])]
    notes += comparison_notes(groups, table, views, design)
    return Grid(
        description,
        views[0].value,
        design.down,
        design.across,
        labels,
        heads,
        table,
        notes,
        best=design.best,
        spoken=True,
    )


def fits(run: Run, row: Slot, column: Slot) -> bool:
    """Return whether a run belongs to this cell."""
    several = len(set(run.fields.get("models.mix", ()))) > 1
    fields = run.fields | {"models.several": several}
    return all(
        name in fields and agrees(fields[name], want)
        for name, want in (row.where | column.where).items()
    )


def agrees(value: Any, want: Any) -> bool:
    """Return whether a field has this value, or one of these alternatives."""
    options = want if isinstance(want, list) and not isinstance(value, list) else [want]
    return format_value(value) in map(format_value, options)


def alike(group: list[Run], design: Layout, row: Slot, column: Slot) -> None:
    """Raise ConfigError if the runs of a cell differ in more than their seed."""
    for name in sorted({name for run in group for name in run.fields} - {SEED}):
        if values := conflicting_values(group, [], name):
            raise ConfigError(
                f"table: --layout {design.name}: runs of the cell "
                f"{', '.join((*row.label, *column.label))} "
                f"differ in {name}: {' and '.join(sorted(values))}; give those of one value"
            )


def absence_notes(runs: list[Run], placed: set[str]) -> Iterator[str]:
    """Yield notes on runs that are not in the table, and why."""
    yield from (
        f"{run.name}: {why}" for run in runs if (why := run.absence()[1]) and run.name in placed
    )
    outside = [run.name for run in runs if run.name not in placed]
    if outside:
        yield (
            f"{len(outside)} of {len(runs)} runs have no cell in this table: {', '.join(outside)}"
        )


def comparison_notes(
    groups: list[list[list[Run]]],
    table: list[list[Shown]],
    views: Sequence[View],
    design: Layout,
) -> Iterator[str]:
    """Yield notes on different seeds or clients, among cells of one best."""
    across = design.best == "row"
    lines, others = (design.rows, design.columns) if across else (design.columns, design.rows)
    for i, line in enumerate(lines):
        cells = [
            (
                ", ".join(other.label),
                groups[i][j] if across else groups[j][i],
                views[i if across else j].measure,
            )
            for j, other in enumerate(others)
        ]
        where = ", ".join(line.label)
        seeded = [
            (", ".join(other.label), table[i][j] if across else table[j][i])
            for j, other in enumerate(others)
        ]
        yield from filter(None, [seeds_note(where, seeded), clients_note(where, cells)])


def otherwise(groups: list[list[list[Run]]], design: Layout) -> Iterator[str]:
    """Yield a note on fields in which the counted runs differ from the jobs of this table."""
    runs: set[str] = set()
    odd: dict[tuple[str, str, str], set[str]] = {}
    for line, row in zip(groups, design.rows, strict=True):
        for group, column in zip(line, design.columns, strict=True):
            for run in (run for run in group if run.finished):
                runs.add(run.name)
                for name, want in (row.setting | column.setting).items():
                    if not agrees(run.fields.get(name), want):
                        odd.setdefault(
                            (name, format_value(run.fields.get(name)), format_value(want)), set()
                        ).add(run.name)
    differences = [
        f"{name} = {value}, there {want}" + f" ({len(names)} of {len(runs)} runs)" * (names != runs)
        for (name, value, want), names in odd.items()
    ]
    if differences:
        yield f"Not as in the jobs of this table: {'; '.join(differences)}"
