"""Methods side by side on the page: differences with intervals, and accuracy by architecture.

Differences are those of `hpcfed compare`. This file also determines which runs are seeds of one
method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import count_noun, count_range, join_few
from hpcfed.report import compare
from hpcfed.report.cases import SEED, by_seed
from hpcfed.report.measures import view_of
from hpcfed.report.pairs import label_fields, methods
from hpcfed.results.columns import (
    architectures,
    format_deviation,
    format_metric,
    last,
    main_metric,
    metrics,
    title_metric,
)
from hpcfed.results.groups import column_name, group_values
from hpcfed.results.run import Run
from hpcfed.results.summary import metric
from hpcfed.storage.record import Record

Lines = list[list[str]]  # a table as text, its head first
ALL = "all clients"


@dataclass(frozen=True)
class Compared:
    """Comparison of methods with the first one.

    caption, lines, notes: as printed by `hpcfed compare`; no lines for a single method.
    why: one sentence, if methods cannot be compared.
    """

    caption: str = ""
    lines: Lines = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    why: str = ""


@dataclass(frozen=True)
class ByMetric:
    """What the page says of methods by one metric.

    name: of the metric.  title, capital: its name in running text, and at the start of a sentence.
    """

    name: str
    title: str
    capital: str
    comparison: Compared
    architectures: Lines


def by_chosen_metric(all_runs: Sequence[Run], metric: str, others: Sequence[str]) -> list[ByMetric]:
    """Return the sections of the page's metric, and of the others that may be chosen instead.

    A section is of the runs that have measured its metric.
    """
    if not all_runs:
        return []
    chosen = [(metric, list(all_runs))]
    for name in others:
        chosen.append((name, [run.with_metric(name) for run in all_runs if name in run.metrics]))
    return [
        ByMetric(
            name,
            **metric_words(name),
            comparison=comparison(runs),
            architectures=by_architecture(runs, seeds(runs)),
        )
        for name, runs in chosen
    ]


def metric_words(metric: str) -> dict[str, str]:
    """Return a metric's name for running text, and for the start of a sentence."""
    title = title_metric(metric)
    return {"title": title, "capital": title[0].upper() + title[1:]}


def comparison(runs: Sequence[Run]) -> Compared:
    """Return the comparison of all methods' finished runs with those of the first that has any."""
    if not runs:
        return Compared()
    try:
        groups = methods(list(runs))
        if len(groups) < 2:
            return Compared()
        view = view_of(run.record for run in runs)
        base = next((one for one in groups if one.runs), groups[0])
        result = compare.result(groups, base, view)
    except ConfigError as error:
        return Compared(why=" ".join(str(error).split()))
    return Compared(result.caption, compare.lines(result), compare.notes(result))


def seeds(runs: Sequence[Run]) -> list[tuple[str, list[int]]]:
    """Return groups of runs that differ only in their seed: a unique name, and positions.

    Two runs with the same seed are not averaged, nor is an unfinished run with others.
    """
    if not runs:
        return []
    place = {id(run): i for i, run in enumerate(runs)}
    fields, groups = by_seed(list(runs))
    result = []
    for group in groups:
        label = label_fields(group[0], fields)
        done = [run for run in group if run.finished]
        if len({run.fields[SEED] for run in done}) < len(done):
            result += [(f"{label} ({run.name})", [place[id(run)]]) for run in done]
        elif done:
            result.append((label, [place[id(run)] for run in done]))
        unfinished = [run for run in group if not run.finished]
        result += [(f"{label} ({run.name}, not finished)", [place[id(run)]]) for run in unfinished]
    return result


def by_architecture(all_runs: Sequence[Run], groups: Sequence[tuple[str, list[int]]]) -> Lines:
    """Return a table of the first metric in the last evaluated round.

    It has a line for each architecture and a column for each method: mean over clients, then mean
    over seeds ± sample standard deviation over seeds. If the runs' first metrics differ, each head
    names that of its column.
    """
    means = [[architecture_means(all_runs[i].record) for i in places] for _, places in groups]
    kinds = list(dict.fromkeys(kind for runs in means for run in runs for kind in run))
    kinds = [ALL, *(kind for kind in kinds if kind != ALL)]
    if len(kinds) == 2:  # one architecture: the same numbers twice
        kinds = [ALL]
    mains = [all_runs[places[0]].main_metric for _, places in groups]  # one for seeds of a method
    labels = [label for label, _ in groups]
    if len(set(mains)) > 1:
        labels = [
            f"{label}: {title_metric(name)}" for label, name in zip(labels, mains, strict=True)
        ]
    head = ["architecture", *labels]
    cells = [
        [
            over_seeds([run[kind] for run in runs if kind in run], name)
            for runs, name in zip(means, mains, strict=True)
        ]
        for kind in kinds
    ]
    return [head, *([kind, *row] for kind, row in zip(kinds, cells, strict=True))]


def architecture_means(record: Record) -> dict[str, float]:
    """Return the mean first metric of a run's clients in the last evaluated round.

    It is over all clients, and by architecture.
    """
    kinds, values = architectures(record), last(record, f"clients/{main_metric(record)}")
    finite = np.isfinite(values)
    by_kind = {ALL: values[finite]}
    for kind in dict.fromkeys(kinds.tolist()):
        by_kind[kind] = values[finite & (kinds == kind)]
    return {kind: float(rows.mean()) for kind, rows in by_kind.items() if len(rows)}


def by_metric(runs: Sequence[Run], groups: Sequence[tuple[str, list[int]]]) -> Lines:
    """Return a table of all metrics in the last evaluated round.

    Each has two lines, its mean over clients and its value over all test examples together, with a
    column for each method, mean over seeds as in `by_architecture`. The table is empty if only
    accuracy was measured.
    """
    measured = [metrics(run.record) for run in runs]
    names = list(dict.fromkeys(name for of_run in measured for name in of_run))
    if names == ["accuracy"]:
        return []
    lines = [["metric", *(label for label, _ in groups)]]
    for name in names:
        facts = [metric(run.record, name) for run in runs]
        title = title_metric(name)
        lines.append([f"{title}, mean over clients", *per_group(groups, facts, "mean", name)])
        lines.append([f"{title}, pooled", *per_group(groups, facts, "pooled", name)])
    return lines


def by_group(runs: Sequence[Run]) -> list[tuple[str, list[list[str]]]]:
    """Return a caption and lines of metrics by group, for each column that groups test examples.

    A line is a metric of a run; the first line is the head.
    """
    tables: dict[str, list[list[str]]] = {}
    for run in runs:
        cells: dict[str, list[str]] = {}
        for one in group_values(run.record):
            cells.setdefault(one.metric, []).append(one.text)
        names = run.record.header.get("groups", [])
        caption = f"By {column_name(run.record)}: {join_few(names, 4)}"
        for name, values in cells.items():
            lines = tables.setdefault(caption, [["metric", *names]])
            beside = f"{run.name}: " if len(runs) > 1 else ""
            lines.append([f"{beside}{title_metric(name)}", *values])
    return list(tables.items())


def per_group(
    groups: Sequence[tuple[str, list[int]]], facts: Sequence[dict[str, Any]], key: str, name: str
) -> list[str]:
    """Return a cell for each method, of means with the numbers of clients that have the metric."""
    cells = []
    for _, places in groups:
        present = [facts[i] for i in places if facts[i][key] is not None]
        cells.append(over_seeds([fact[key] for fact in present], name))
        if key == "mean" and present:
            cells[-1] += f", {count_range([fact['clients'] for fact in present], 'client')}"
    return cells


def over_seeds(means: Sequence[float], metric: str) -> str:
    """Return a cell: mean over seeds, their sample standard deviation, and their number."""
    if not means:
        return "-"
    mean = float(np.mean(means))
    if len(means) == 1:
        return format_metric(metric, mean)
    number = format_deviation(metric, mean, float(np.std(means, ddof=1)))
    return f"{number} ({count_noun(len(means), 'seed')})"
