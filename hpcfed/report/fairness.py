"""How equally clients are served: one number of the values that each of them has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


def worst(values: np.ndarray, high: bool) -> float:
    """Return the value of the client that is served worst."""
    return float(values.min() if high else values.max())


def worst_tenth(values: np.ndarray, high: bool) -> float:
    """Return the mean over the tenth of the clients that is served worst, at least one client."""
    ordered = np.sort(values if high else -values)
    tenth = float(ordered[: -(-len(values) // 10)].mean())
    return tenth if high else -tenth


def spread(values: np.ndarray, high: bool) -> float:
    """Return the standard deviation over clients."""
    return float(values.std())


def jain(values: np.ndarray, high: bool) -> float:
    """Return Jain's index, (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything.

    It is nan if all values are 0, or one is negative.
    """
    if values.min() < 0:
        return float("nan")
    squares = float(len(values) * np.square(values).sum())
    return float(values.sum()) ** 2 / squares if squares else float("nan")


def gini(values: np.ndarray, high: bool) -> float:
    """Return Gini's coefficient, sum_ij |x_i - x_j| / (2 n^2 mean): 0 if all are equal.

    It is nan if all values are 0, or one is negative.
    """
    if values.min() < 0:
        return float("nan")
    n, mean = len(values), float(values.mean())
    ranks = 2 * np.arange(1, n + 1) - n - 1
    return float((ranks * np.sort(values)).sum()) / (n * n * mean) if mean > 0 else float("nan")


@dataclass(frozen=True)
class Fairness:
    """A number that says how equally clients are served.

    words: description; {} stands for the metric.  of: values of clients, [n], n >= 1, and whether
    higher is better.
    high: whether more is better; None: as of the metric.
    scaled: whether it has the scale of the metric; otherwise it is a share.
    """

    words: str
    of: Callable[[np.ndarray, bool], float]
    high: bool | None = None
    scaled: bool = True


FAIRNESS = {
    "worst": Fairness("{}, of the client with the worst value", worst),
    "worst_tenth": Fairness("{}, mean over the tenth of the clients with the worst", worst_tenth),
    "spread": Fairness("Standard deviation over clients of the {}", spread, high=False),
    "jain": Fairness(
        "Jain's index of the clients' {} (1: all are equal)", jain, high=True, scaled=False
    ),
    "gini": Fairness(
        "Gini's coefficient of the clients' {} (0: all are equal)", gini, high=False, scaled=False
    ),
}
