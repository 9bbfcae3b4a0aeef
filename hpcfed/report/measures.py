"""Measures: the number of a run that a table shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.tables import size
from hpcfed.core.wording import count_noun
from hpcfed.report.cases import EVALUATED, MACHINE
from hpcfed.report.fairness import FAIRNESS, Fairness
from hpcfed.results import summary
from hpcfed.results.columns import (
    at_the_end,
    best_mean,
    by_round,
    column,
    decimals,
    evaluated_rounds,
    format_number,
    is_high,
    is_share,
    main_metric,
    rounds_here,
    title_metric,
)
from hpcfed.results.groups import PHASES as GROUP_PHASES
from hpcfed.results.groups import GroupValue, group_values
from hpcfed.results.summary import facts, summary_statistics
from hpcfed.storage.record import Record
from hpcfed.tasks import METRICS, described

# mean and deviation over the clients of one run; None: not recorded
Numbers = tuple[float | None, float | None]


@dataclass(frozen=True)
class Measure:
    """One number of a run.

    what: description for the caption.
    share: whether it is at most 1, as accuracy.
    high: whether more is better.
    unit: B, s or J.
    each: returns the numbers of the clients, by client, of which `of` returns the mean; None if it
    is not a number of clients.
    several_rounds: whether it depends on which rounds were evaluated before the last one.
    absence: returns why a run has no number, in a few words; "" if it was not recorded.
    """

    what: str
    of: Callable[[Record], Numbers]
    share: bool = True
    high: bool = True
    unit: str = ""
    each: Callable[[Record], dict[int, float]] | None = None
    several_rounds: bool = False
    absence: Callable[[Record], str] | None = None

    def clients_change(self, record: Record) -> bool:
        """Return whether other clients were evaluated in each of the rounds.

        The mean over rounds of means over clients, which `of` returns, is then not the mean of
        `each`.
        """
        values = [*self.each(record).values()] if self.each and self.several_rounds else []
        mean = self.of(record)[0]
        alike = mean is None or not values or np.isclose(mean, np.mean(values), rtol=1e-9, atol=0)
        return not alike


@dataclass(frozen=True)
class Scored:
    """The models whose scores a measure shows.

    phases: of the summary; the first one that was recorded counts, "" is the last round.
    columns: of the clients' scores, in the same way, {} stands for the metric.
    """

    words: str
    phases: tuple[str, ...]
    columns: tuple[str, ...]


OVER = "mean over clients"
AFTER_EACH = "of each client's model after local training"
AFTER = f"{AFTER_EACH} in the last round"
POOLED = "over the test examples of all clients together"
MODELS = {
    "last": Scored(AFTER, ("",), ("clients/{}",)),
    "before": Scored(
        "of the models before local training in the last round",
        ("before",),
        ("clients/{}_before",),
    ),
    "received": Scored(  # scored in the round if the job has evaluate.received, else after the end
        "of the model that each client receives after the last round, before it trains it",
        ("received", "final_received"),
        ("clients/{}_received", "final/{}_received"),
    ),
    "final": Scored("of own models after the end", ("final",), ("final/{}",)),
    "final_received": Scored(
        "of models received after the end", ("final_received",), ("final/{}_received",)
    ),
}


def flow(what: str, unit: str, part: str, name: str) -> Measure:
    """Return the measure of a number of the summary, of which less is better."""
    return Measure(
        what,
        lambda record: (facts(record).get(part, {}).get(name), None),
        share=False,
        high=False,
        unit=unit,
    )


def seconds_per_round(record: Record) -> float | None:
    """Return the seconds of a round, mean over those on the ranks of the run's last start."""
    seconds = by_round(record, "seconds")[rounds_here(record)]
    return float(np.nansum(seconds)) / len(seconds) if len(seconds) else None


FLOWS = {  # numbers that are not of a metric
    "down": flow("Bytes received per client and round", "B", "traffic", "down_per_client_round"),
    "up": flow("Bytes sent per client and round", "B", "traffic", "up_per_client_round"),
    "seconds": Measure(
        "Seconds of a round",
        lambda record: (seconds_per_round(record), None),
        share=False,
        high=False,
        unit="s",
    ),
    "joules": flow("Energy of a run", "J", "energy", "joules"),
}
# Of these, those that depend on the machine, and what they do with rounds that a resumed run did on
# other ranks.
TIMED = {"seconds": "left out", "joules": "included"}


def fairness(
    one: Fairness, each: Callable[[Record], dict[int, float]], high: bool, record: Record
) -> Numbers:
    """Return how equally the clients of a run are served; it has no deviation over clients.

    each: returns the values of the clients.  high: whether higher values are better.
    """
    values = np.array([*each(record).values()])
    number = one.of(values, high) if len(values) else float("nan")
    return (number if np.isfinite(number) else None), None


def fairness_measures(metric: str, means: dict[str, Measure]) -> dict[str, Measure]:
    """Return the measures of how equally clients are served, by name.

    means: measures of the mean over clients.
    """
    share, high = is_share(metric), is_high(metric)
    measures = {}
    for name, one in MODELS.items():
        each = means[name].each
        assert each is not None
        for word, fair in FAIRNESS.items():
            words = fair.words.format(f"test {title_metric(metric)} {one.words}")
            measures[word if name == "last" else f"{name}_{word}"] = Measure(
                words[0].upper() + words[1:],
                partial(fairness, fair, each, high),
                share=share or not fair.scaled,
                high=high if fair.high is None else fair.high,
            )
    return measures


def of_group(
    metric: str, phase: str, pick: Callable[[list[GroupValue]], float], record: Record
) -> Numbers:
    """Return a number of the metrics by group of a run, which has no deviation over clients."""
    values = [one for one in group_values(record, phase) if one.metric == metric]
    values = [one for one in values if np.isfinite(one.value)]
    number = pick(values) if values else float("nan")
    return (number if np.isfinite(number) else None), None


def group_measures(metric: str, group: str | None = None) -> dict[str, Measure]:
    """Return the measures of a metric by group of the test examples (evaluate.groups), by name.

    group: of this group; None: of the worst one, and the gap to the best.
    """
    high, share, title = is_high(metric), is_share(metric), f"Test {title_metric(metric)}"
    least = min if high else max

    def value(values: list[GroupValue]) -> float:
        return next((one.value for one in values if one.group == group), float("nan"))

    def lowest(values: list[GroupValue]) -> float:
        return least(one.value for one in values)

    def gap(values: list[GroupValue]) -> float:
        return max(one.value for one in values) - min(one.value for one in values)

    measures = {}
    for phase, whose in GROUP_PHASES.items():
        start = f"{phase.removeprefix('_')}_" if phase else ""
        of, shown = partial(of_group, metric, phase), f"{title} of {whose}"
        if group is not None:
            words = f"{shown}, over the test examples of group {group}"
            measures[f"{start}group:{group}"] = Measure(words, partial(of, value), share, high)
            continue
        words = f"{shown}, over the test examples of the group with the worst value"
        measures[f"{start}worst_group"] = Measure(words, partial(of, lowest), share, high)
        words = f"{shown}, largest difference between groups of test examples"
        measures[f"{start}group_gap"] = Measure(words, partial(of, gap), share, high=False)
    return measures


def measures_of(metric: str) -> dict[str, Measure]:
    """Return the measures of one metric, by name."""
    title = f"Test {title_metric(metric)}"
    best = Measure(
        f"{title} {AFTER_EACH}, {OVER}, of each run's best round, chosen by it (so it flatters)",
        partial(best_round, metric),
        each=partial(each_best, metric),
        several_rounds=True,
    )
    means = {
        name: Measure(
            f"{title} {one.words}, {OVER}",
            partial(last, metric, one, "mean"),
            each=partial(each_last, [name.format(metric) for name in one.columns]),
        )
        for name, one in MODELS.items()
    }
    pooled = {
        "pooled" if name == "last" else f"{name}_pooled": Measure(
            f"{title} {one.words}, {POOLED}", partial(last, metric, one, "pooled")
        )
        for name, one in MODELS.items()
        if name != "before"
    }
    other = Measure(
        f"{title} on the domain on which no client trains (evaluate.unseen), of the server's model "
        f"in the last round, or {OVER} of their models",
        partial(unseen, metric),
    )
    success = Measure(
        "success of a backdoor or edge case: share of its images that the server's model takes for "
        f"the target in the last round, or {OVER} of their models",
        attack_success,
        high=False,
    )
    measures = {"last": means["last"], "best": best, **means, **pooled, "unseen": other}
    share, high = is_share(metric), is_high(metric)
    scaled = {name: replace(one, share=share, high=high) for name, one in measures.items()}
    others = fairness_measures(metric, means) | group_measures(metric)
    return scaled | others | {"attack_success": success}


def unseen(metric: str, record: Record) -> Numbers:
    """Return the score on the domain on which no client trains."""
    if f"rounds/{metric}_unseen" not in record.columns:
        return None, None
    score = summary.unseen(record, metric)
    return score["mean"], score["std"]


def attack_success(record: Record) -> Numbers:
    """Return the success of an attack on chosen images."""
    if "rounds/attack_success" not in record.columns:
        return None, None
    return summary.attack(record)["success"], None


def last(metric: str, models: Scored, number: str, record: Record) -> Numbers:
    """Return the scores of these models in the last evaluated round.

    number: "mean" over clients, or "pooled" over all their test examples together.
    """
    scores = summary.metric(record, metric)
    phases = [scores[phase] if phase else scores for phase in models.phases]
    recorded = next((one for one in phases if one[number] is not None), phases[0])
    return recorded[number], recorded["std"] if number == "mean" else None


def best_round(metric: str, record: Record) -> Numbers:
    """Return the scores in the round with the best mean."""
    rounds = [summary_statistics(row) for row in column(record, f"clients/{metric}")]
    t = best_mean(metric, [row["mean"] for row in rounds])
    return (None, None) if t is None else (rounds[t]["mean"], rounds[t]["std"])


def lately(metric: str, n: int, record: Record) -> Numbers:
    """Return mean and deviation over the last n evaluated rounds, of means and deviations.

    Rounds in which the metric is undefined are left out; both are None if these are all.
    """
    name = f"clients/{metric}"
    rounds = evaluated_rounds(record, name)[-n:]
    rows = [summary_statistics(row) for row in column(record, name)[rounds]]
    rows = [row for row in rows if row["mean"] is not None]
    if len(rounds) < n or not rows:
        return None, None
    stds = [row["std"] for row in rows if row["std"] is not None]
    return float(np.mean([row["mean"] for row in rows])), float(np.mean(stds)) if stds else None


def too_few(metric: str, n: int, record: Record) -> str:
    """Return in words that fewer than n rounds were evaluated; "" if they are enough, or none."""
    rounds = len(evaluated_rounds(record, f"clients/{metric}"))
    return f"evaluated in only {count_noun(rounds, 'round')}" if 0 < rounds < n else ""


def each_last(names: Sequence[str], record: Record, n: int = 1) -> dict[int, float]:
    """Return the mean over the last n evaluated rounds, by client; empty if there are fewer.

    names: of columns, or arrays of the method's final step; the first that has values counts.
    """
    for name in names:
        if name.startswith("final/"):
            values = at_the_end(record, name)
        else:
            rounds = evaluated_rounds(record, name)
            values = mean_by_client(record, name, rounds[-n:] if len(rounds) >= n else ())
        if values:
            return values
    return {}


def each_best(metric: str, record: Record) -> dict[int, float]:
    """Return `best_round` by client."""
    top = summary.best(record, metric)["round"]
    return mean_by_client(record, f"clients/{metric}", [] if top is None else [top - 1])


def mean_by_client(
    record: Record, name: str, rounds: Sequence[int] | np.ndarray
) -> dict[int, float]:
    """Return the mean over these rounds, for every client that has a number in one of them."""
    values: dict[int, list[float]] = {}
    for t in rounds:
        row = column(record, name)[t]
        ids = record.columns["clients/id"][t] if "clients/id" in record.columns else range(len(row))
        for k, value in zip(ids, row, strict=True):
            if np.isfinite(value):
                values.setdefault(int(k), []).append(float(value))
    return {k: float(np.mean(several)) for k, several in values.items()}


def measure(name: str = "last", metric: str | None = None) -> Measure:
    """Return the measure of this name. Raises ConfigError for unknown ones.

    `last:10` is the mean over the last 10 evaluated rounds, as several papers report it.
    metric: of which it is; default: accuracy.
    """
    if metric is not None and not described(metric):
        raise ConfigError(f"--metric: {unknown('metric', metric, METRICS, 'hpcfed list metrics')}")
    if metric and name in (*FLOWS, "accuracy") and name != metric:
        raise ConfigError(
            f"--metric {metric}, but --value {name} is not of a metric, or of another; "
            "remove one of them"
        )
    if name in FLOWS:
        return FLOWS[name]
    metric, name = metric or "accuracy", "last" if name == "accuracy" else name
    start, _, n = name.partition(":")
    if start == "last" and n.isdecimal() and 0 < int(n) < 10**9:
        what = (
            f"Test {title_metric(metric)} {AFTER_EACH}, {OVER} and over the last {int(n)} "
            f"evaluated rounds"
        )
        of = partial(lately, metric, int(n))
        each = partial(each_last, [f"clients/{metric}"], n=int(n))
        return Measure(
            what,
            of,
            is_share(metric),
            is_high(metric),
            each=each,
            several_rounds=int(n) > 1,
            absence=partial(too_few, metric, int(n)),
        )
    measures = measures_of(metric)
    if start.endswith("group") and n:
        measures |= group_measures(metric, n)
    if name not in measures:
        names = ["accuracy", *measures, *FLOWS, "last:10"]
        raise ConfigError(f"--value: {unknown('value', name, names)}")
    return measures[name]


def usual_metric(records: Iterable[Record | None]) -> str:
    """Return the default metric of a table of these runs: that of all of them, else accuracy."""
    names = {main_metric(record) for record in records if record}
    return names.pop() if len(names) == 1 and names <= METRICS.keys() else "accuracy"


def check_group(value: str, records: Iterable[Record | None]) -> None:
    """Raise ConfigError for a group of test examples that is not among those of these runs."""
    names = {name for record in records if record for name in record.header.get("groups", [])}
    start, _, group = value.partition(":")
    if start.endswith("group") and group and names and group not in names:
        raise ConfigError(
            f"--value {value}: {unknown('group', group, names, 'hpcfed summary RUN')}"
        )


def of_received_models(received: Measure, metric: str) -> Measure:
    """Return the measure of received models, without runs whose clients receive no model.

    What such a client would use next is its own model, or its own body with a head. Files that do
    not say it, and scores after the end, which were taken for this purpose, count.
    """
    of, each = received.of, received.each
    assert each is not None

    def counts(record: Record) -> bool:
        at_end = f"final/{metric}_received" in record.arrays
        return at_end or record.header.get("receives_model", True)

    return replace(
        received,
        of=lambda record: of(record) if counts(record) else (None, None),
        each=lambda record: each(record) if counts(record) else {},
    )


@dataclass(frozen=True)
class View:
    """The number that is shown, and its format.

    deviation: over seeds or clients, or none.
    beside: a second number that tables show beside it, where runs have it.
    """

    value: str
    measure: Measure
    deviation: str = "seeds"
    percent: bool = False
    beside: Measure | None = None

    def what(self) -> str:
        return self.measure.what + (", in percent" if self.percent and self.measure.share else "")

    @property
    def timed(self) -> bool:
        """Whether the number depends on the machine."""
        return self.value in TIMED

    @property
    def counted(self) -> tuple[str, ...]:
        """Further fields on which the number depends."""
        of_machine = MACHINE if self.timed else ()
        return (*of_machine, EVALUATED) if self.measure.several_rounds else of_machine

    def scale(self, value: float) -> float:
        """Return a number of the measure in the unit that `what` says."""
        return 100 * value if self.percent and self.measure.share else value

    def places(self, values: Sequence[float], spread: float = 0.0) -> int:
        """Return the decimals of numbers that stand together, such as a mean and its deviation.

        spread: a deviation, or half an interval.
        """
        if self.measure.share:
            return 2 if self.percent else 4
        if not self.measure.unit:
            return decimals(values, spread)
        integral = all(float(value).is_integer() for value in (*values, spread))
        return 0 if integral else decimals(values, spread, digits=3)

    def number(self, value: float, places: int | None = None) -> str:
        """Return a number as text. places: its decimals; by default those of it alone."""
        places = self.places([value]) if places is None else places
        if self.measure.share:
            return f"{self.scale(value):z.{places}f}"
        if not self.measure.unit:
            return format_number(value, places=places)
        text = f"{value:z,.{places}f} {self.measure.unit}"
        large = self.measure.unit == "B" and round(value) >= 1000
        return f"{text} ({size(value)})" if large else text


def view_of(
    records: Iterable[Record | None],
    value: str | None = None,
    metric: str | None = None,
    deviation: str = "seeds",
    percent: bool = False,
) -> View:
    """Return the view of a table of these runs.

    value, metric: as asked for; None for the default.
    Raises ConfigError for unknown ones, and for a group that none of these runs has.
    """
    records = list(records)
    check_group(value or "", records)
    if metric is None and value not in (*FLOWS, "accuracy"):
        metric = usual_metric(records)
    if metric in (None, "accuracy"):
        name = value or "accuracy"
    else:
        name = f"{metric} {value}" if value else metric
    beside = None
    if value in (None, "accuracy", "last"):
        beside = of_received_models(measure("received", metric), metric or "accuracy")
    return View(name, measure(value or "last", metric), deviation, percent, beside)
