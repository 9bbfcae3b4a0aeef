"""`hpcfed compare RUN RUN...`: methods against one of them, over the same clients and seeds.

It needs only result files. As Demšar (JMLR 7, 2006) advises: paired differences, Wilcoxon's
signed-rank test, Holm's correction if several methods are compared with one. Seeds take the place
of his data sets, because they are independent; clients of one run are not. If the rank test of so
few seeds cannot give p < 0.05 after this correction, all methods are compared by the paired t test.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.config.methods import registered_name
from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.wording import count_noun
from hpcfed.report import differences
from hpcfed.report.cases import also_differ, code_or_data_differ, find_cases, with_machine
from hpcfed.report.differences import ENOUGH
from hpcfed.report.formats import align_columns, booktabs, markdown_table, save_or_return, tex
from hpcfed.report.measures import View, view_of
from hpcfed.report.naming import Names, with_titles
from hpcfed.report.notes import run_notes
from hpcfed.report.pairs import (
    Comparison,
    Method,
    compare_all,
    explain_unpaired,
    methods,
)
from hpcfed.results.run import Run, find
from hpcfed.storage.names import results_of

HEADS = (
    "method",
    "mean",
    "paired baseline",
    "difference",
    "95 % interval",
    "p",
    "p (Holm)",
    "effect size",
    "over",
    "clients better / worse / equal",
)
NAMES = (
    "method",
    "baseline",
    "mean",
    "baseline_mean",
    "difference",
    "low",
    "high",
    "p",
    "p_holm",
    "effect",
    "seeds",
    "clients",
    "better",
    "worse",
    "equal",
)

OVER_SEEDS = (
    "Over seeds: paired t interval, and {test}. Seeds are the units (clusters); the clients of one "
    "run are not independent, and are only counted, over all seeds."
)
EFFECT = (
    "Effect size: mean over standard deviation of the clients' differences; 0.2 is small, 0.8 "
    "large (Cohen, 1988)."
)
ONE_SEED = (
    f"One seed: bootstrap interval ({differences.DRAWS:,} draws) and Wilcoxon's signed-rank test "
    f"over the "
    "clients of one run, which are not independent: they share a server and a seed. This "
    "describes these clients, not what another seed would give."
)


@dataclass(frozen=True)
class Result:
    """All comparisons with one baseline, and how their numbers are shown.

    unpaired: methods that cannot be compared with it, and why.
    """

    base: Method
    done: list[Comparison]
    unpaired: list[tuple[Method, str]]
    view: View

    @property
    def caption(self) -> str:
        return (
            f"{self.view.what()}; paired differences from {self.base.label}, with 95 % "
            f"confidence intervals."
        )


def compare(
    runs: Sequence[Path],
    format: str = "text",
    out: Path | None = None,
    **options: Any,
) -> str:
    """Return the comparison as a table, or the path of the file that it was written to.

    options: as `make_comparison` takes them.
    """
    return save_or_return(FORMATS[format](make_comparison(runs, **options)), out)


def make_comparison(
    runs: Sequence[Path | Run],
    baseline: str | None = None,
    value: str | None = None,
    anyway: bool = False,
    percent: bool = False,
    metric: str | None = None,
    names: Names = None,
) -> Result:
    """Return the comparisons of methods with one of them.

    baseline: a method as the table or a job names it, or one of its runs; default: that of the
    first path.
    anyway: whether runs of other rounds, data, partitions or clients are accepted.
    names: of methods and data, as `find_named` takes them.
    """
    cases = find_cases(runs, names)
    view = view_of((run.record for run in cases if run.finished), value, metric, percent=percent)
    groups = methods(with_machine(with_titles(cases)), view.timed)
    if baseline is None:
        return result(groups, methods_at(groups, runs[0])[0], view, anyway)
    base = find_baseline(groups, baseline)
    if base is None:
        cases = find_cases([*runs, Path(baseline)], names)
        groups = methods(with_machine(with_titles(cases)), view.timed)
        base, *others = methods_at(groups, Path(baseline))
        if others:
            raise ConfigError(
                f"compare: --baseline {baseline} holds runs of {1 + len(others)} methods; give one "
                "of them"
            )
    return result(groups, base, view, anyway)


def result(groups: list[Method], base: Method, view: View, anyway: bool = False) -> Result:
    """Return the comparisons of all other methods with the baseline.

    anyway: whether runs of other rounds, data, partitions or clients are accepted.
    Raises ConfigError if there are no others, or none can be paired.
    """
    if len(groups) < 2:
        raise ConfigError(
            f"compare: all runs are {base.label}; give runs that differ in more than their seed"
        )
    comparisons, unpaired = compare_all(groups, base, view, anyway)
    return Result(base, comparisons, unpaired, view)


def find_baseline(groups: list[Method], baseline: str) -> Method | None:
    """Return the baseline method of this name; None if the name is a path."""
    matches = [one for one in groups if one.label == baseline] or [
        one
        for one in groups
        if one.label.partition(",")[0] == baseline
        or one.all()[0].method == registered_name(baseline)
    ]
    if len(matches) > 1:
        labels = "; ".join(one.label for one in matches)
        raise ConfigError(
            f"compare: --baseline {baseline} may be any of: {labels}; give one of them"
        )
    if not matches and not os.path.exists(baseline):
        raise ConfigError(
            f"compare: --baseline: {unknown('method', baseline, [one.label for one in groups])}"
        )
    return matches[0] if matches else None


def methods_at(groups: list[Method], place: Path | Run) -> list[Method]:
    """Return the methods of the runs at this path, in the order of these runs."""
    of = {results_of(run.path).resolve(): one for one in groups for run in one.all()}
    places = [results_of(run.path).resolve() for run in find([place])]
    return list({of[place].label: of[place] for place in places if place in of}.values())


def lines(result: Result) -> list[list[str]]:
    """Return head and rows as text, without empty columns.

    The baseline of the pairs has a column if it differs from that of all the baseline's runs.
    """
    usual = alone(result)
    baseline = [f"{result.base.label} (baseline)", usual, *[""] * (len(HEADS) - 2)]
    differ = any(result.view.number(one.base) != usual for one in result.done)
    table = [list(HEADS), baseline, *(cells(one, result.view, differ) for one in result.done)]
    columns = [i for i in range(len(HEADS)) if any(row[i] for row in table[1:])]
    return [[row[i] for i in columns] for row in table]


def alone(result: Result) -> str:
    """Return the baseline's own number: mean over all its runs."""
    means = (result.view.measure.of(run.record)[0] for run in result.base.runs.values())
    return result.view.number(float(np.mean([mean for mean in means if mean is not None])))


def cells(one: Comparison, view: View, baseline: bool) -> list[str]:
    """Return a comparison as text. baseline: whether it has that of its pairs."""
    places = one.places(view)
    interval = " to ".join(format_signed(end, view, places) for end in one.interval or ())
    single = f"{count_noun(one.clients, 'client')} of one seed" if one.clients else "one seed"
    over = f"{one.seeds} seeds" if one.seeds > 1 else single
    counts = " / ".join(map(str, one.counts)) if one.clients else ""
    numbers = (
        view.number(one.mean, places),
        view.number(one.base, places) if baseline else "",
        format_signed(one.difference, view, places),
        interval,
        likely(one.p),
        likely(one.holm),
        "" if one.effect is None else f"{one.effect:+.2f}",
    )
    return [one.method.label, *numbers, over, counts]


def format_signed(difference: float, view: View, places: int) -> str:
    """Return a difference with its sign. places: its decimals."""
    text = view.number(abs(difference), places)
    return f"{'-' if difference < 0 and any(digit in text for digit in '123456789') else '+'}{text}"


def likely(p: float | None) -> str:
    return "" if p is None else "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def notes(result: Result) -> list[str]:
    """Return notes on how to read the numbers, and on runs that do not count."""
    compared = (result.base, *(one.method for one in result.done))
    others = [one for one, _ in result.unpaired]
    absent = (run for one in (*compared, *others) for run in one.absent)
    said = [f"{one.label} is not compared: {why}" for one, why in result.unpaired]
    said += [f"{run.name}: {run.absence()[1]}" for run in absent]
    for one in result.done:
        runs = [*one.method.runs.values(), *result.base.runs.values()]
        differ = also_differ([runs], [], result.view.counted)
        said += [f"{one.method.label} and {result.base.label} {differ}"] if differ else []
    said += [
        line for one in result.done for line in explain_unpaired(one.method, result.base, one.pairs)
    ]
    return [
        *how(result.done),
        *said,
        *rounds_note(compared, result.view),
        *run_notes([run for one in compared for run in one.runs.values()], result.view.value),
        *code_or_data_differ(run for one in compared for run in one.all()),
    ]


def rounds_note(compared: Sequence[Method], view: View) -> list[str]:
    """Return a note on methods whose means over rounds are not those of `hpcfed table`."""
    labels = [
        one.label
        for one in compared
        if any(view.measure.clients_change(run.record) for run in one.runs.values())
    ]
    text = (
        "the evaluated clients change by round; paired differences are of each client's mean over "
        "its rounds, while hpcfed table shows the mean over rounds of the means over clients"
    )
    return [f"{', '.join(labels)}: {text}"] if labels else []


def how(done: list[Comparison]) -> list[str]:
    """Return notes on the units of intervals and tests, and their limits."""
    over_seeds = any(one.seeds >= ENOUGH for one in done)
    test = "Wilcoxon's signed-rank test" if done[0].by_ranks else "paired t test"
    sentences = [OVER_SEEDS.format(test=test)] if over_seeds else []
    if any(one.seeds < ENOUGH and one.p is None for one in done):
        sentences.append(f"An interval and a test over seeds need {ENOUGH} of them.")
    if any(one.seeds == 1 and one.p is not None for one in done):
        sentences.append(ONE_SEED)
    if any(one.holm is not None for one in done):
        sentences.append(
            f"p (Holm) is corrected for {sum(one.p is not None for one in done)} tests; the "
            f"intervals are not."
        )
    if any(one.effect is not None for one in done):
        sentences.append(EFFECT)
    return sentences


def text(result: Result) -> str:
    return align_columns(result.caption, lines(result), notes(result))


def markdown(result: Result) -> str:
    return markdown_table(result.caption, lines(result), notes(result))


def latex(result: Result) -> str:
    head, *body = [[tex(cell) for cell in line] for line in lines(result)]
    return booktabs(result.caption, [" & ".join(head) + r" \\"], body, notes(result))


def to_csv(result: Result) -> str:
    """Return a CSV line for each comparison, with the numbers in full."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(NAMES)
    for one in result.done:
        rows.writerow(["" if cell is None else cell for cell in numbers(one, result)])
    return out.getvalue().rstrip("\n")


def numbers(one: Comparison, result: Result) -> list[str | float | int | None]:
    """Return the values of NAMES of a comparison, None for those that it has not."""
    low, high = map(result.view.scale, one.interval) if one.interval else (None, None)
    measured = map(result.view.scale, (one.mean, one.base, one.difference))
    exact = (*measured, low, high, one.p, one.holm, one.effect)
    floats = (None if number is None else float(number) for number in exact)
    counts = one.counts if one.clients else (None, None, None)
    return [one.method.label, result.base.label, *floats, one.seeds, one.clients or None, *counts]


FORMATS: dict[str, Callable[[Result], str]] = {
    "text": text,
    "markdown": markdown,
    "latex": latex,
    "csv": to_csv,
}
