"""Columns of a result file as reports use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hpcfed.storage.columns import PHASES
from hpcfed.storage.record import Record
from hpcfed.tasks import described

# endings of the columns of other scores than those of own models after local training
SCORED = ("_before", "_received", "_unseen", "_validation")
MOST_DECIMALS = 9  # numbers with more have an exponent
NEGLIGIBLE = 1e-6  # a deviation over its mean, below which it is shown as 0
FAR = 1e30  # virtual seconds; more cannot be drawn and have no meaning


def metrics(record: Record) -> list[str]:
    """Return the names of the metrics that a run has measured; accuracy for older files."""
    return record.header.get("metrics") or ["accuracy"]


def main_metric(record: Record) -> str:
    """Return the metric that is used if none is asked for: that of the data's task."""
    return metrics(record)[0]


def is_high(name: str) -> bool:
    """Return whether higher values of a metric are better."""
    metric = described(name)
    return metric is None or metric.high


def is_share(name: str) -> bool:
    """Return whether a metric is at most 1, so that decimals and percent are its formats."""
    metric = described(name)
    return metric is None or metric.share


def format_metric(name: str, value: float | None, places: int = 4) -> str:
    """Return a value of a metric as text; "-" for None.

    places: decimals of a share, and digits of other values.
    """
    if value is None:
        return "-"
    if is_share(name):
        return f"{value:.{places}f}"
    return format_number(value, places)


def format_number(value: float, digits: int = 4, places: int | None = None) -> str:
    """Return a number with these digits, or as a whole number if it has more.

    From 10 million on, and with very many decimals, it has an exponent.
    places: decimals, in place of those that give these digits.
    """
    places = decimals([value], digits=digits) if places is None else places
    if round(abs(value)) >= 10**7 or places > MOST_DECIMALS:
        return f"{value:.{digits - 1}e}"
    return f"{value:z,.{places}f}"


def format_deviation(name: str, mean: float, deviation: float) -> str:
    """Return the mean of a metric and its deviation as text, with the same decimals."""
    if is_share(name):
        return f"{format_metric(name, mean)} ± {format_metric(name, deviation)}"
    places = decimals([mean], deviation)
    return f"{format_number(mean, places=places)} ± {format_number(deviation, places=places)}"


def decimals(values: Sequence[float], spread: float = 0.0, digits: int = 4) -> int:
    """Return the decimals of numbers that stand together, such as a mean and its deviation.

    The largest of the values has at least these digits. The spread, a deviation or half an
    interval, has at least two, unless it is negligible.
    """
    largest = max(abs(value) for value in values)
    places = digits - 1 - power_of_ten(largest, digits)
    if spread > NEGLIGIBLE * largest:
        places = max(places, min(1 - power_of_ten(spread, 2), MOST_DECIMALS))
    return max(places, 0)


def power_of_ten(value: float, digits: int) -> int:
    """Return the exponent of a number that is rounded to these digits; 0 if it is not finite."""
    return int(f"{value:.{digits - 1}e}".partition("e")[2] or 0)


def best_mean(name: str, means: Sequence[float | None]) -> int | None:
    """Return the first position of the best of these means of a metric; None if all are None."""
    scores = [
        (mean if is_high(name) else -mean, -t) for t, mean in enumerate(means) if mean is not None
    ]
    return -max(scores)[1] if scores else None


def title_metric(name: str) -> str:
    """Return the name of a metric in text and on axes."""
    metric = described(name)
    return metric.title if metric else name


def client_names(record: Record) -> list[str]:
    """Return the names of the K clients; [] if they have none."""
    return record.header.get("client_names", [])


def name_client(record: Record, k: int) -> str:
    """Return a client's number, with its name if it has one: `3 (Ulm)`."""
    names = client_names(record)
    return f"{k} ({names[k]})" if names else str(k)


def metric_by_client(record: Record, name: str) -> np.ndarray:
    """Return a metric of clients, [T, K], or of all of them pooled, [T, 1].

    name: of the metric, followed by `_before`, `_received` or `_pooled` as in the columns' names.
    """
    if name.endswith("_pooled"):
        return by_round(record, name)[:, None]
    return column(record, f"clients/{name}")


def last(record: Record, name: str) -> np.ndarray:
    """Return the row of a column [T, K] of the last round in which any client was evaluated.

    All values are nan if there is none, or if the metric is undefined in that round. With more
    than 10,000 clients a row has only those that took part or were evaluated, in the order of
    `clients/id`.
    """
    t = evaluated_rounds(record, name)
    return (
        column(record, name)[t[-1]]
        if len(t)
        else np.full(len(record.header["architectures"]), np.nan)
    )


def at_the_end(record: Record, name: str) -> dict[int, float]:
    """Return the values of an array of the final step, by client; {} without the array.

    name: such as "final/accuracy".
    """
    values = record.arrays.get(name, np.empty(0))
    ids = record.arrays.get("final/clients", np.arange(len(values)))
    return {k: v for k, v in zip(ids.tolist(), values.tolist(), strict=True) if np.isfinite(v)}


def architectures(record: Record) -> np.ndarray:
    """Return the architectures of the clients of the last evaluated round.

    These are all clients, or with more than 10,000 clients those of the row.
    """
    kinds, t = np.array(record.header["architectures"]), evaluated_rounds(record)
    if not len(t) or "clients/architecture" not in record.columns:
        return kinds
    return kinds[np.nan_to_num(record.columns["clients/architecture"][t[-1]]).astype(int)]


def evaluated_rounds(record: Record, name: str = "") -> np.ndarray:
    """Return the rounds, from 0, in which the models of a metric's column [T, K] were scored.

    In such a round a client has a value in it or, because the metric may be undefined, the main
    metric or the loss of these models.
    name: of the column; by default that of the main metric.
    """
    main = main_metric(record)
    phase = next((phase for phase in SCORED if name.endswith(phase)), "")
    names = {name or f"clients/{main}", f"clients/{main}{phase}", f"clients/loss{phase}"}
    scored = [np.isfinite(record.columns[n]).any(1) for n in names if n in record.columns]
    return np.flatnonzero(np.any(scored, axis=0)) if scored else np.empty(0, dtype=int)


def rounds_with_values(record: Record, name: str = "") -> np.ndarray:
    """Return the rounds, from 0, in which any client has a value in a column [T, K].

    name: of the column; by default that of the main metric.
    """
    values = column(record, name or f"clients/{main_metric(record)}")
    return np.flatnonzero(np.isfinite(values).any(1))


def column(record: Record, name: str) -> np.ndarray:
    """Return a column; nan for all rounds and clients if it was not recorded."""
    return record.columns.get(
        name, np.full((record.rounds, len(record.header["architectures"])), np.nan)
    )


def phases(record: Record) -> dict[str, np.ndarray]:
    """Return the seconds of the ranks, [T, R], in each phase that was recorded.

    Values are nan if a rank did not exist in a round.
    """
    columns = {phase: record.columns.get(f"ranks/{phase}") for phase in PHASES}
    return {phase: seconds for phase, seconds in columns.items() if seconds is not None}


def by_round(record: Record, name: str) -> np.ndarray:
    """Return a number of each round, [T]; nan if it was not recorded."""
    return record.columns.get(f"rounds/{name}", np.full(record.rounds, np.nan))


def rounds_here(record: Record) -> np.ndarray:
    """Return which rounds were done on the ranks and nodes of the run's last start, [T].

    Those before a resume may have been done on others.
    """

    def place(part: Mapping[str, Any]) -> tuple[Any, Any]:
        return part.get("ranks"), part.get("hardware", {}).get("nodes")

    parts = [*record.header.get("history", []), record.header]
    here = np.full(record.rounds, place(parts[0]) == place(record.header))
    for before, part in pairwise(parts):
        here[before["rounds"] :] = place(part) == place(record.header)
    return here


def so_far(record: Record) -> dict[str, np.ndarray]:
    """Return the cumulative costs up to the end of each round, [T] each.

    epochs: local epochs, mean over all clients.
    bytes: bytes down and up, mean over all clients.
    virtual: virtual seconds; nan if there are none.
    epsilon: of what was released; nan without an account of privacy.
    """
    K = record.header["job"]["clients"]
    epochs, down, up = (
        np.nan_to_num(column(record, f"clients/{name}")).sum(1).cumsum() / K
        for name in ("epochs", "down", "up")
    )
    virtual = by_round(record, "virtual_seconds")
    return {
        "epochs": epochs,
        "bytes": down + up,
        "virtual": np.where(virtual < FAR, virtual, np.nan),
        "epsilon": by_round(record, "epsilon"),
    }


def mean_and_std(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and population standard deviation, [T], over clients with a finite value.

    Both are nan if no client has one.
    """
    finite = np.isfinite(values)
    n, filled = finite.sum(1), np.where(finite, values, 0.0)
    mean = np.divide(filled.sum(1), n, out=np.full(len(n), np.nan), where=n > 0)
    away = np.where(finite, values - mean[:, None], 0.0) ** 2
    return mean, np.sqrt(np.divide(away.sum(1), n, out=np.full(len(n), np.nan), where=n > 0))


def faults(record: Record) -> list[tuple[int, int, str]]:
    """Return the failures of clients in order: round, from 1, client, and kind of failure."""
    numbers, kinds = record.columns.get("clients/fault"), record.header.get("faults", [])
    if numbers is None:
        return []
    ids = record.columns.get(
        "clients/id", np.broadcast_to(np.arange(numbers.shape[1]), numbers.shape)
    )
    return [
        (int(t) + 1, int(ids[t, i]), kinds[int(numbers[t, i])]) for t, i in np.argwhere(numbers > 0)
    ]
