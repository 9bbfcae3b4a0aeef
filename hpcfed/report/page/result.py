"""The result of runs in two sentences, at the top of the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import count_noun, count_range, join_few
from hpcfed.report.cases import ASIDE
from hpcfed.report.compare import format_signed
from hpcfed.report.measures import View, view_of
from hpcfed.report.naming import METHOD
from hpcfed.report.pairs import Comparison, Method, against, label_fields, methods, pairs
from hpcfed.results.columns import title_metric
from hpcfed.results.run import Run
from hpcfed.storage.fields import covers

# numbers of runs with other values do not compare; nor do those with other fields of [data]
SETTING = ("data.name", "data.partition", "clients", "participation")
FEW = 4  # methods or data sets that a sentence names


def sentences(runs: Sequence[Run]) -> list[str]:
    """Return two sentences: which method has the best result, and how sure that is.

    runs: with the names of methods and data (`naming.with_titles`). Empty if no run is finished, or
    the runs cannot be grouped by method.
    """
    view = view_of([run.record for run in runs if run.finished])
    try:
        cases = [one for one in methods(list(runs)) if one.runs]
        values = {one.label: values_of(one, view) for one in cases}
    except ConfigError:
        return []
    cases = [one for one in cases if values[one.label]]
    if not cases:
        return []
    title = f"test {title_metric(a_run(cases[0]).main_metric)}"
    setting = setting_fields([a_run(one) for one in cases])
    by_data: dict[tuple[str, ...], list[Method]] = {}
    for one in cases:
        by_data.setdefault(a_run(one).at(setting), []).append(one)
    ranked = {
        data: sorted(members, key=lambda one: np.mean(values[one.label]), reverse=view.measure.high)
        for data, members in by_data.items()
    }
    if len(ranked) > 1:
        return on_several(ranked, setting, title, view)
    [ordered] = ranked.values()
    if len(ordered) == 1:
        return of_one(ordered[0], title, view)
    return [lead(ordered, title, view), margin(ordered[0], ordered[1], view)]


def setting_fields(runs: Sequence[Run]) -> list[str]:
    """Return the fields of which runs must have the same values for their numbers to compare."""
    of_data = {name for run in runs for name in run.fields if name.startswith("data.")}
    differing = sorted(
        name
        for name in of_data.difference(SETTING)
        if not covers(ASIDE, name) and len({run.at([name]) for run in runs}) > 1
    )
    return [*SETTING, *differing]


def a_run(one: Method) -> Run:
    """Return a finished run of a method; all of them are alike but for their seeds."""
    return next(iter(one.runs.values()))


def values_of(one: Method, view: View) -> list[float]:
    """Return the value of each seed; [] if a run has not recorded it."""
    values = [view.measure.of(run.record)[0] for run in one.runs.values()]
    recorded = [value for value in values if value is not None]
    return recorded if len(recorded) == len(values) else []


def amount(one: Method, view: View) -> str:
    """Return a method's result, with the deviation over its seeds."""
    numbers = values_of(one, view)
    mean = float(np.mean(numbers))
    if len(numbers) == 1:
        return view.number(mean)
    deviation = float(np.std(numbers, ddof=1))
    places = view.places([mean], deviation)
    return f"{view.number(mean, places)} ± {view.number(deviation, places)}"


def over(one: Method, view: View) -> str:
    """Return over what a result is a mean: the clients that have a value, and seeds."""
    assert view.measure.each is not None
    clients = [len(view.measure.each(run.record)) for run in one.runs.values()]
    seeds = len(one.runs)
    return f"mean over {count_range(clients, 'client')}" + (
        f" and {seeds} seeds" if seeds > 1 else ", one seed"
    )


def lead(ordered: Sequence[Method], title: str, view: View) -> str:
    """Return which of several methods is best. ordered: the best first."""
    best = "highest" if view.measure.high else "lowest"
    rest = join_few([f"{one.label} {amount(one, view)}" for one in ordered[1:]], FEW)
    return (
        f"Of {len(ordered)} methods {ordered[0].label} has the {best} {title}: "
        f"{amount(ordered[0], view)}, {over(ordered[0], view)}; {rest}."
    )


def margin(best: Method, second: Method, view: View) -> str:
    """Return how sure the difference of the two best methods is."""
    try:
        result = against(best, pairs(best, second, view), view)
    except ConfigError:
        return f"{best.label} and {second.label} cannot be compared client by client."
    of_all = [float(np.mean(values_of(one, view))) for one in (best, second)]
    alike = np.allclose(of_all, [result.mean, result.base], atol=0)
    start = "That is" if alike else "Over the seeds and clients that both have it is"
    places = result.places(view)
    difference = (
        f"{start} {format_signed(result.difference, view, places)} against {second.label}, the next"
    )
    if result.interval is None:
        return f"{difference}; with {count_noun(result.seeds, 'seed')} there is no interval."
    low, high = (format_signed(end, view, places) for end in result.interval)
    interval = f"95 % interval {low} to {high}"
    units = f"{result.seeds} seeds" if result.seeds > 1 else "the clients of one seed"
    return f"{difference} ({interval}, over {units}){verdict(result)}."


def verdict(result: Comparison) -> str:
    """Return whether the interval excludes no difference."""
    assert result.interval is not None
    if result.interval[0] <= 0 <= result.interval[1]:
        return ", so the two cannot be told apart"
    return "" if result.seeds > 1 else "; another seed may differ"


def of_one(one: Method, title: str, view: View) -> list[str]:
    """Return the result of a single method, and that of its clients."""
    head = f"{one.label} reaches a {title} of {amount(one, view)}, {over(one, view)}."
    assert view.measure.each is not None
    values = [v for run in one.runs.values() for v in view.measure.each(run.record).values()]
    if len(values) < 2:
        return [head]
    quantiles = [float(value) for value in np.quantile(values, [0, 0.5, 1])]
    low, middle, high = (view.number(value, view.places(quantiles)) for value in quantiles)
    return [head, f"Its clients lie between {low} and {high}, half of them above {middle}."]


def on_several(
    ranked: dict[tuple[str, ...], list[Method]], setting: Sequence[str], title: str, view: View
) -> list[str]:
    """Return the best method in each setting.

    ranked: methods by the values of these fields.
    """
    columns = zip(setting, zip(*ranked, strict=True), strict=True)
    differing = [field for field, values in columns if len(set(values)) > 1]
    winners = []
    for best, *_ in ranked.values():
        run = a_run(best)
        where = label_fields(run, differing)
        winners.append(f"{run.at([METHOD])[0]} on {where} ({amount(best, view)})")
    return [
        f"By {title} the best methods are {join_few(winners, FEW)}.",
        f"These are {len(ranked)} settings, whose numbers do not compare; the table below has "
        "differences with intervals, where methods can be paired.",
    ]
