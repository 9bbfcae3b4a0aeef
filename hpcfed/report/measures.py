"""Which number of a run a table shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcfed.errors import ConfigError, unknown
from hpcfed.report.columns import column
from hpcfed.report.progress import mean
from hpcfed.report.summary import facts, spread
from hpcfed.storage.record import Record

Numbers = tuple[float | None, float | None]  # mean and deviation over the clients of one run; None: not recorded


@dataclass(frozen=True)
class Measure:
    """One number of a run. what: in words, for the caption.  share: 0..1.  high: whether more is better."""

    what: str
    of: Callable[[Record], Numbers]
    share: bool = True
    high: bool = True


def last(name: str | None = None) -> Callable[[Record], Numbers]:
    """Of the last evaluated round: the clients' accuracy, or another that the summary has."""
    def numbers(record: Record) -> Numbers:
        found = facts(record)["accuracy"]
        found = found[name] if name else found
        return found["mean"], found["std"]

    return numbers


def best(record: Record) -> Numbers:
    """Of the round with the highest mean."""
    means = [spread(row) for row in column(record, "clients/accuracy")]
    top = max((s for s in means if s["mean"] is not None), key=lambda s: s["mean"], default={"mean": None, "std": None})
    return top["mean"], top["std"]


def lately(n: int) -> Callable[[Record], Numbers]:
    """Mean over the last n evaluated rounds, and of their deviations."""
    def numbers(record: Record) -> Numbers:
        rows = column(record, "clients/accuracy")
        found = [spread(row) for row in rows[np.isfinite(rows).any(1)][-n:]]
        if len(found) < n:
            return None, None
        return mean_of([s["mean"] for s in found]), mean_of([s["std"] for s in found])

    return numbers


def mean_of(values: list[float]) -> float:
    return mean(np.array(values))


def traffic(way: str) -> Callable[[Record], Numbers]:
    return lambda record: (facts(record)["traffic"][f"{way}_per_client_round"], None)


def seconds(record: Record) -> Numbers:
    return facts(record)["time"]["seconds_per_round"], None


OVER = "mean over clients"
MEASURES = {
    "accuracy": Measure(f"Test accuracy after the last round, {OVER}", last()),
    "best": Measure(f"Test accuracy, {OVER}, of each run's best round, chosen by it (so it flatters)", best),
    "before": Measure(f"Test accuracy in the last round before local training, {OVER}", last("before")),
    "received": Measure(f"Test accuracy of models received after the last round, {OVER}", last("received")),
    "final": Measure(f"Test accuracy of own models after the end, {OVER}", last("final")),
    "final_received": Measure(f"Test accuracy of models received after the end, {OVER}", last("final_received")),
    "down": Measure("Bytes that a client receives in a round", traffic("down"), share=False, high=False),
    "up": Measure("Bytes that a client sends in a round", traffic("up"), share=False, high=False),
    "seconds": Measure("Seconds of a round", seconds, share=False, high=False),
}


def measure(name: str) -> Measure:
    """The measure of this name; `last:10` is the mean over the last 10 evaluated rounds. ConfigError for others."""
    start, _, n = name.partition(":")
    if start == "last" and n.isdecimal() and 0 < int(n) < 10**9:
        return Measure(f"Test accuracy, {OVER} and over the last {int(n)} evaluated rounds", lately(int(n)))
    if name not in MEASURES:
        raise ConfigError(f"table: --value: {unknown('value', name, [*MEASURES, 'last:10'])}")
    return MEASURES[name]
