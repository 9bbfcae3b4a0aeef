"""Which number of a run a table shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.tables import size
from hpcfed.report.progress import mean
from hpcfed.results.columns import column, rounds_with_values
from hpcfed.results.summary import facts, summary_statistics
from hpcfed.storage.record import Record

Numbers = tuple[
    float | None, float | None
]  # mean and deviation over the clients of one run; None: not recorded


@dataclass(frozen=True)
class Measure:
    """One number of a run. what: in words, for the caption.  share: 0..1.  high: whether more is
    better.  unit: B or s.

    each: the numbers of the clients, by client, of which `of` tells the mean; None: it is not one
    of clients.
    """

    what: str
    of: Callable[[Record], Numbers]
    share: bool = True
    high: bool = True
    unit: str = ""
    each: Callable[[Record], dict[int, float]] | None = None


def last(name: str | None = None) -> Callable[[Record], Numbers]:
    """Of the last evaluated round: the clients' accuracy, or another that the summary has."""

    def numbers(record: Record) -> Numbers:
        found = facts(record)["accuracy"]
        found = found[name] if name else found
        return found["mean"], found["std"]

    return numbers


def best(record: Record) -> Numbers:
    """Of the round with the highest mean."""
    means = [summary_statistics(row) for row in column(record, "clients/accuracy")]
    top = max(
        (s for s in means if s["mean"] is not None),
        key=lambda s: s["mean"],
        default={"mean": None, "std": None},
    )
    return top["mean"], top["std"]


def lately(n: int) -> Callable[[Record], Numbers]:
    """Mean over the last n evaluated rounds, and of their deviations."""

    def numbers(record: Record) -> Numbers:
        found = [
            summary_statistics(row)
            for row in column(record, "clients/accuracy")[rounds_with_values(record)][-n:]
        ]
        if len(found) < n:
            return None, None
        stds = [s["std"] for s in found if s["std"] is not None]
        return mean_of([s["mean"] for s in found]), mean_of(stds) if stds else None

    return numbers


def mean_of(values: list[float]) -> float:
    return mean(np.array(values))


def each_of(record: Record, name: str, rounds: Sequence[int] | np.ndarray) -> dict[int, float]:
    """Mean over these rounds, of every client that has a number in one of them."""
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


def each_last(name: str = "clients/accuracy", n: int = 1) -> Callable[[Record], dict[int, float]]:
    """Over the last n evaluated rounds; none where there are fewer."""

    def clients(record: Record) -> dict[int, float]:
        rounds = rounds_with_values(record, name)
        return each_of(record, name, rounds[-n:] if len(rounds) >= n else ())

    return clients


def each_best(record: Record) -> dict[int, float]:
    top = facts(record)["best"]["round"]
    return each_of(record, "clients/accuracy", [] if top is None else [top - 1])


def each_final(name: str) -> Callable[[Record], dict[int, float]]:
    """After what the method does at its end."""

    def clients(record: Record) -> dict[int, float]:
        values = record.arrays.get(f"final/{name}", np.empty(0))
        return {k: float(value) for k, value in enumerate(values) if np.isfinite(value)}

    return clients


def traffic(way: str) -> Callable[[Record], Numbers]:
    return lambda record: (facts(record)["traffic"][f"{way}_per_client_round"], None)


def seconds(record: Record) -> Numbers:
    return facts(record)["time"]["seconds_per_round"], None


OVER = "mean over clients"
MEASURES = {
    "accuracy": Measure(f"Test accuracy after the last round, {OVER}", last(), each=each_last()),
    "best": Measure(
        f"Test accuracy, {OVER}, of each run's best round, chosen by it (so it flatters)",
        best,
        each=each_best,
    ),
    "before": Measure(
        f"Test accuracy in the last round before local training, {OVER}",
        last("before"),
        each=each_last("clients/accuracy_before"),
    ),
    "received": Measure(
        f"Test accuracy of models received after the last round, {OVER}",
        last("received"),
        each=each_last("clients/accuracy_received"),
    ),
    "final": Measure(
        f"Test accuracy of own models after the end, {OVER}",
        last("final"),
        each=each_final("accuracy"),
    ),
    "final_received": Measure(
        f"Test accuracy of models received after the end, {OVER}",
        last("final_received"),
        each=each_final("accuracy_received"),
    ),
    "down": Measure(
        "Bytes that a client receives in a round", traffic("down"), False, high=False, unit="B"
    ),
    "up": Measure(
        "Bytes that a client sends in a round", traffic("up"), False, high=False, unit="B"
    ),
    "seconds": Measure("Seconds of a round", seconds, False, high=False, unit="s"),
}


def measure(name: str) -> Measure:
    """The measure of this name; `last:10` is the mean over the last 10 evaluated rounds.
    ConfigError for others.
    """
    start, _, n = name.partition(":")
    if start == "last" and n.isdecimal() and 0 < int(n) < 10**9:
        what = f"Test accuracy, {OVER} and over the last {int(n)} evaluated rounds"
        return Measure(what, lately(int(n)), each=each_last(n=int(n)))
    if name not in MEASURES:
        raise ConfigError(f"--value: {unknown('value', name, [*MEASURES, 'last:10'])}")
    return MEASURES[name]


@dataclass(frozen=True)
class View:
    """Which number is shown, and how. deviation: over seeds or clients, or none."""

    value: str
    measure: Measure
    deviation: str = "seeds"
    percent: bool = False

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
