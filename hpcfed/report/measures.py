"""Measures: the number of a run that a table shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcfed.config.metrics import METRICS
from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.tables import size
from hpcfed.report.progress import mean
from hpcfed.results.columns import (
    by_round,
    column,
    main_metric,
    rounds_with_values,
    title_metric,
)
from hpcfed.results.summary import best as best_round
from hpcfed.results.summary import facts, summary_statistics
from hpcfed.results.summary import metric as metric_facts
from hpcfed.storage.record import Record

Numbers = tuple[
    float | None, float | None
]  # mean and deviation over the clients of one run; None: not recorded


@dataclass(frozen=True)
class Measure:
    """One number of a run.

    what: description for the caption.
    share: whether it is in 0..1.
    high: whether more is better.
    unit: B or s.
    each: returns the numbers of the clients, by client, of which `of` returns the mean; None if it
    is not a number of clients.
    """

    what: str
    of: Callable[[Record], Numbers]
    share: bool = True
    high: bool = True
    unit: str = ""
    each: Callable[[Record], dict[int, float]] | None = None


def last(metric: str, phase: str = "") -> Callable[[Record], Numbers]:
    """Return a function for the last evaluated round, mean over clients.

    It is of the clients' own models, or of another phase of the summary.
    """

    def numbers(record: Record) -> Numbers:
        found = metric_facts(record, metric)
        found = found[phase] if phase else found
        return found["mean"], found["std"]

    return numbers


def pooled(metric: str, phase: str = "") -> Callable[[Record], Numbers]:
    """Return a function for the last evaluated round, over all clients' test examples together."""

    def numbers(record: Record) -> Numbers:
        found = metric_facts(record, metric)
        return (found[phase] if phase else found)["pooled"], None

    return numbers


def received(metric: str) -> Callable[[Record], Numbers]:
    """Return a function for the models that clients receive after the last round.

    They are scored in the round if the job has evaluate.received, else after the end.
    """

    def numbers(record: Record) -> Numbers:
        found = last(metric, "received")(record)
        return last(metric, "final_received")(record) if found[0] is None else found

    return numbers


def received_pooled(metric: str) -> Callable[[Record], Numbers]:
    """Return `received` over all clients' test examples together."""

    def numbers(record: Record) -> Numbers:
        found = pooled(metric, "received")(record)
        return pooled(metric, "final_received")(record) if found[0] is None else found

    return numbers


def best(metric: str) -> Callable[[Record], Numbers]:
    """Return a function for the round with the highest mean."""

    def numbers(record: Record) -> Numbers:
        means = [summary_statistics(row) for row in column(record, f"clients/{metric}")]
        top = max(
            (s for s in means if s["mean"] is not None),
            key=lambda s: s["mean"],
            default={"mean": None, "std": None},
        )
        return top["mean"], top["std"]

    return numbers


def lately(metric: str, n: int) -> Callable[[Record], Numbers]:
    """Return a function for the means over the last n evaluated rounds, of means and deviations."""

    def numbers(record: Record) -> Numbers:
        name = f"clients/{metric}"
        rounds = rounds_with_values(record, name)[-n:]
        found = [summary_statistics(row) for row in column(record, name)[rounds]]
        if len(found) < n:
            return None, None
        stds = [s["std"] for s in found if s["std"] is not None]
        return mean_of([s["mean"] for s in found]), mean_of(stds) if stds else None

    return numbers


def lately_pooled(metric: str, n: int) -> Callable[[Record], Numbers]:
    """Return a function for the mean of `pooled` over the last n evaluated rounds."""

    def numbers(record: Record) -> Numbers:
        values = by_round(record, f"{metric}_pooled")[rounds_with_values(record)[-n:]]
        there = len(values) == n and np.isfinite(values).all()
        return (mean_of(values.tolist()) if there else None), None

    return numbers


def mean_of(values: list[float]) -> float:
    return mean(np.array(values))


def each_of(record: Record, name: str, rounds: Sequence[int] | np.ndarray) -> dict[int, float]:
    """Return the mean over these rounds, for every client that has a number in one of them."""
    found: dict[int, list[float]] = {}
    for t in rounds:
        row = column(record, name)[t]
        known = (
            record.columns["clients/id"][t] if "clients/id" in record.columns else range(len(row))
        )
        for k, value in zip(known, row, strict=True):
            if np.isfinite(value):
                found.setdefault(int(k), []).append(float(value))
    return {k: mean_of(values) for k, values in found.items()}


def each_last(name: str, n: int = 1) -> Callable[[Record], dict[int, float]]:
    """Return a function for the last n evaluated rounds, by client; empty if there are fewer."""

    def clients(record: Record) -> dict[int, float]:
        rounds = rounds_with_values(record, name)
        return each_of(record, name, rounds[-n:] if len(rounds) >= n else ())

    return clients


def each_best(metric: str) -> Callable[[Record], dict[int, float]]:
    def clients(record: Record) -> dict[int, float]:
        top = best_round(record, metric)["round"]
        return each_of(record, f"clients/{metric}", [] if top is None else [top - 1])

    return clients


def each_final(name: str) -> Callable[[Record], dict[int, float]]:
    """Return a function for the numbers after the method's final step, by client."""

    def clients(record: Record) -> dict[int, float]:
        values = record.arrays.get(f"final/{name}", np.empty(0))
        return {k: float(value) for k, value in enumerate(values) if np.isfinite(value)}

    return clients


def each_received(metric: str) -> Callable[[Record], dict[int, float]]:
    """Return `received` by client."""

    def clients(record: Record) -> dict[int, float]:
        name = f"{metric}_received"
        return each_last(f"clients/{name}")(record) or each_final(name)(record)

    return clients


def traffic(way: str) -> Callable[[Record], Numbers]:
    return lambda record: (facts(record)["traffic"][f"{way}_per_client_round"], None)


def seconds(record: Record) -> Numbers:
    return facts(record)["time"]["seconds_per_round"], None


OVER = "mean over clients"
AFTER_EACH = "of each client's model after local training"
AFTER = f"{AFTER_EACH} in the last round"
RECEIVED = "the model that each client receives after the last round, before it trains it"
POOLED = "over the test examples of all clients together"
FLOWS = {  # numbers that are not of a metric
    "down": Measure(
        "Bytes that a client receives in a round", traffic("down"), False, high=False, unit="B"
    ),
    "up": Measure(
        "Bytes that a client sends in a round", traffic("up"), False, high=False, unit="B"
    ),
    "seconds": Measure("Seconds of a round", seconds, False, high=False, unit="s"),
}


def measures_of(metric: str) -> dict[str, Measure]:
    """Return the measures of one metric, by name."""
    title = f"Test {title_metric(metric)}"
    return {
        "last": Measure(
            f"{title} {AFTER}, {OVER}",
            last(metric),
            each=each_last(f"clients/{metric}"),
        ),
        "best": Measure(
            f"{title} {AFTER_EACH}, {OVER}, of each run's best round, chosen by it (so it "
            f"flatters)",
            best(metric),
            each=each_best(metric),
        ),
        "before": Measure(
            f"{title} of the models before local training in the last round, {OVER}",
            last(metric, "before"),
            each=each_last(f"clients/{metric}_before"),
        ),
        "received": Measure(
            f"{title} of {RECEIVED}, {OVER}", received(metric), each=each_received(metric)
        ),
        "final": Measure(
            f"{title} of own models after the end, {OVER}",
            last(metric, "final"),
            each=each_final(metric),
        ),
        "final_received": Measure(
            f"{title} of models received after the end, {OVER}",
            last(metric, "final_received"),
            each=each_final(f"{metric}_received"),
        ),
        "pooled": Measure(f"{title} {AFTER}, {POOLED}", pooled(metric)),
        "received_pooled": Measure(
            f"{title} of {RECEIVED}, {POOLED}",
            received_pooled(metric),
        ),
        "final_pooled": Measure(
            f"{title} of own models after the end, {POOLED}", pooled(metric, "final")
        ),
        "final_received_pooled": Measure(
            f"{title} of models received after the end, {POOLED}",
            pooled(metric, "final_received"),
        ),
    }


def measure(name: str = "last", metric: str | None = None) -> Measure:
    """Return the measure of this name. Raises ConfigError for unknown ones.

    `last:10` is the mean over the last 10 evaluated rounds, `pooled:10` that of the pooled metric.
    metric: of which it is; default: accuracy.
    """
    if metric is not None and metric not in METRICS:
        raise ConfigError(f"--metric: {unknown('metric', metric, METRICS)}")
    if metric and name in (*FLOWS, "accuracy") and name != metric:
        raise ConfigError(
            f"--metric {metric}, but --value {name} is not of a metric, or of another; "
            "leave one of them away"
        )
    if name in FLOWS:
        return FLOWS[name]
    metric, name = metric or "accuracy", "last" if name == "accuracy" else name
    start, _, n = name.partition(":")
    if start in ("last", "pooled") and n.isdecimal() and 0 < int(n) < 10**9:
        title = f"Test {title_metric(metric)}"
        if start == "pooled":
            what = f"{title} {AFTER_EACH}, {POOLED}, mean over the last {int(n)} evaluated rounds"
            return Measure(what, lately_pooled(metric, int(n)))
        what = f"{title} {AFTER_EACH}, {OVER} and over the last {int(n)} evaluated rounds"
        each = each_last(f"clients/{metric}", int(n))
        return Measure(what, lately(metric, int(n)), each=each)
    known = measures_of(metric)
    if name not in known:
        names = ["accuracy", *known, *FLOWS, "last:10", "pooled:10"]
        raise ConfigError(f"--value: {unknown('value', name, names)}")
    return known[name]


def usual_metric(records: Iterable[Record | None]) -> str:
    """Return the default metric of a table of these runs: that of all of them, else accuracy."""
    found = {main_metric(record) for record in records if record}
    return found.pop() if len(found) == 1 and found <= METRICS.keys() else "accuracy"


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

    def number(self, value: float) -> str:
        if not self.measure.share:
            whole = float(value).is_integer() or (self.measure.unit == "B" and value >= 1000)
            exact = (
                f"{value:,.0f} {self.measure.unit}" if whole else f"{value:.3g} {self.measure.unit}"
            )
            return (
                f"{exact} ({size(value)})" if self.measure.unit == "B" and value >= 1000 else exact
            )
        return f"{100 * value:.2f}" if self.percent else f"{value:.4f}"


def view_of(
    records: Iterable[Record | None],
    value: str | None = None,
    metric: str | None = None,
    deviation: str = "seeds",
    percent: bool = False,
) -> View:
    """Return the view of a table of these runs.

    value, metric: as asked for; None for the default.
    """
    if metric is None and value not in (*FLOWS, "accuracy"):
        metric = usual_metric(records)
    if metric in (None, "accuracy"):
        name = value or "accuracy"
    else:
        name = f"{metric} {value}" if value else metric
    beside = measure("received", metric) if value in (None, "accuracy", "last") else None
    return View(name, measure(value or "last", metric), deviation, percent, beside)
