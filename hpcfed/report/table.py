"""`hpcfed table SWEEP...`: methods against data sets, like the tables of papers.

It needs only result files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.wording import join_few
from hpcfed.report import layouts
from hpcfed.report.cases import (
    also_differ,
    axes,
    code_or_data_differ,
    find_cases,
    name_skew,
    with_machine,
)
from hpcfed.report.choose import choose_values
from hpcfed.report.formats import FORMATS, Grid, Shown, save_or_return
from hpcfed.report.measures import Measure, View, view_of
from hpcfed.report.naming import Names, with_titles
from hpcfed.report.notes import clients_note, run_notes, seeds_note
from hpcfed.report.pairs import label_fields
from hpcfed.report.table_cells import DEVIATIONS, caption, cell, mark_best
from hpcfed.results.one_class import one_class
from hpcfed.results.run import Run

AS_RECEIVED = ", as received"
RECEIVED_NOTE = (
    "as received: the model that each client would receive next, after the last round and before "
    "local training"
)


def table(
    runs: Sequence[Path],
    format: str = "text",
    out: Path | None = None,
    **options: Any,
) -> str:
    """Return the table, or the path of the file that it was written to.

    options: as `make_grid` takes them.
    """
    return save_or_return(FORMATS[format](make_grid(runs, **options)), out)


def make_grid(
    runs: Sequence[Path | Run],
    rows: str | None = None,
    columns: str | None = None,
    value: str | None = None,
    deviation: str | None = None,
    percent: bool = False,
    layout: str | None = None,
    paper: bool = False,
    metric: str | None = None,
    choose: str | None = None,
    names: Names = None,
) -> Grid:
    """Return the table of these runs.

    rows, columns: fields of the job, separated by commas; chosen automatically if not given.
    value: which number of a run.
    deviation: over what, of DEVIATIONS; default: seeds.
    metric: of which metric it is.
    layout: rows, columns and other options as in a table of a paper.
    paper: whether the paper's numbers are added.
    choose: fields, separated by commas, of which the values with the best validation score are
    taken.
    names: of methods and data, as `find_named` takes them.
    """
    if paper and not layout:
        raise ConfigError("table: --paper, but no --layout names the table of a paper; add one")
    if layout:
        refuse(
            layout,
            rows=rows,
            columns=columns,
            value=value,
            metric=metric,
            deviation=deviation,
            percent=percent,
            choose=choose,
            names=names,
        )
        design = layouts.layout(layout)
        return layouts.fill_layout(find_cases(runs), design, paper)
    deviation = deviation or "seeds"
    if deviation not in DEVIATIONS:
        raise ConfigError(f"table: --deviation: {unknown('deviation', deviation, DEVIATIONS)}")
    chosen = [fields.split(",") if fields else None for fields in (rows, columns)]
    tried, how = with_machine(with_titles(find_cases(runs, names))), list[str]()
    if choose:
        tried, how = choose_values(tried, choose.split(","))
    cases = name_skew(tried, [name for names in chosen for name in names or []])
    view = view_of((run.record for run in cases if run.finished), value, metric, deviation, percent)
    down, across = axes(cases, chosen[0], chosen[1], timed=view.timed)
    return grid(cases, down, across, view, how)


def refuse(layout: str, **options: object) -> None:
    """Raise ConfigError for options that a layout sets itself."""
    for name in (name for name, value in options.items() if value):
        raise ConfigError(f"table: --{name}, but --layout {layout} has its own; remove one of them")


def grid(
    runs: list[Run], down: list[str], across: list[str], view: View, how: Sequence[str] = ()
) -> Grid:
    """Return the cells, row by row, with notes.

    how: notes on values that were chosen.
    """
    lines, heads = order_values(runs, down), order_values(runs, across)
    groups = [
        [[run for run in runs if (run.at(down), run.at(across)) == (r, c)] for c in heads]
        for r in lines
    ]
    seeds = max(len(group) for row in groups for group in row)
    table = [[cell(group, view, seeds) for group in row] for row in groups]
    columns = [[run for run in runs if run.at(across) == head] for head in heads]
    notes = [*how, *filter(None, [also_differ(columns, [*down, *across], view.counted)])]
    notes += code_or_data_differ(runs)
    notes += [f"{run.name}: {why}" for run in runs if (why := run.absence()[1])]
    notes += [*run_notes(runs, view.value), *one_class_notes(runs)]
    beside = view.beside if down[:1] == ["algorithm.name"] else None
    measures = {"": view.measure} | ({AS_RECEIVED: beside} if beside else {})
    notes += column_notes(groups, table, down, across, measures)
    check_deviation(view, table)
    description = caption(view.what(), view.deviation, seeds, table)
    if beside:
        lines, table, more = with_received(lines, groups, table, view, seeds)
        notes = [*more, *notes]
    return Grid(
        description,
        view.value,
        down,
        across,
        lines,
        heads,
        mark_best(table, view.measure.high),
        notes,
    )


def check_deviation(view: View, table: list[list[Shown]]) -> None:
    """Raise ConfigError if deviations over clients are asked for, but no cell has one."""
    numbers = [cell for row in table for cell in row if cell.mean is not None]
    if view.deviation == "clients" and numbers and not any(cell.std for cell in numbers):
        raise ConfigError(
            f"table: --deviation clients, but no run has a deviation over clients of {view.value}; "
            "leave it out"
        )


def column_notes(
    groups: list[list[list[Run]]],
    table: list[list[Shown]],
    down: Sequence[str],
    across: Sequence[str],
    measures: Mapping[str, Measure],
) -> list[str]:
    """Return notes on the columns whose cells have different seeds or clients.

    groups: the runs of each cell.  measures: those of a method's rows, by the ends of their labels.
    """
    notes = []
    for column, shown in zip(zip(*groups, strict=True), zip(*table, strict=True), strict=True):
        present = [(group, cell) for group, cell in zip(column, shown, strict=True) if group]
        where = label_fields(present[0][0][0], across)
        labels = [label_fields(group[0], down) for group, _ in present]
        cells = [
            (f"{label}{end}", group, measure)
            for label, (group, _) in zip(labels, present, strict=True)
            for end, measure in measures.items()
        ]
        seeded = [(label, cell) for label, (_, cell) in zip(labels, present, strict=True)]
        notes += [seeds_note(where, seeded), clients_note(where, cells)]
    return list(filter(None, notes))


def one_class_notes(runs: Sequence[Run]) -> list[str]:
    """Return a note on the runs whose models predict one class alone."""
    names = [run.name for run in runs if run.finished and one_class(run.record)]
    text = "their models, or those of some clients, predict one class for all test examples"
    return [f"{join_few(names, 4)}: {text} (hpcfed summary)"] if names else []


def with_received(
    lines: list[tuple[str, ...]],
    groups: list[list[list[Run]]],
    table: list[list[Shown]],
    view: View,
    seeds: int,
) -> tuple[list[tuple[str, ...]], list[list[Shown]], list[str]]:
    """Return rows and cells with a second row for methods with a global model, and a note on them.

    It has the numbers of the model that clients receive, in place of what they make of it.
    groups: the runs of each cell.
    """
    assert view.beside is not None
    other = replace(view, measure=view.beside, beside=None)
    all_lines, all_cells = list[tuple[str, ...]](), list[list[Shown]]()
    for line, runs, row in zip(lines, groups, table, strict=True):
        received = [cell(group, other, seeds) for group in runs]
        measured = any(one.mean is not None for one in received)
        all_lines += [line, (f"{line[0]}{AS_RECEIVED}", *line[1:])] if measured else [line]
        all_cells += [row, received] if measured else [row]
    note = [RECEIVED_NOTE] if len(all_lines) > len(lines) else []
    return all_lines, all_cells, note


def order_values(runs: list[Run], names: list[str]) -> list[tuple[str, ...]]:
    """Return the values of these fields, sorted field by field in the order of the runs."""
    distinct = list(dict.fromkeys(run.at(names) for run in runs))
    place = [list(dict.fromkeys(values)) for values in zip(*distinct, strict=True)]
    return sorted(
        distinct,
        key=lambda values: [order.index(value) for order, value in zip(place, values, strict=True)],
    )
