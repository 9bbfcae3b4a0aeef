"""Metrics by group of the test examples (evaluate.groups), with intervals, after the last round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcfed.core import rng
from hpcfed.tasks.task import Answers, Task

SURE = 0.95  # of an interval
DRAWS = 300  # of the bootstrap


def group_metrics(
    task: Task, metrics: Sequence[str], answers: Answers, groups: int, seed: int
) -> dict[str, np.ndarray]:
    """Return each metric of each group with its interval, and the examples of each group.

    answers: of all clients together, with the `group` of each example, 0..groups-1.
    NAME, NAME_low, NAME_high: [groups]; nan if it is not defined.  examples: [groups].
    """
    parts = [select(answers, np.flatnonzero(answers["group"] == i)) for i in range(groups)]
    columns: dict[str, Any] = {"examples": np.array([count(part) for part in parts])}
    for name in metrics:
        values = [task.compute([name], part)[0] for part in parts]
        ends = [interval(task, name, part, rng.stream(seed, "groups", name)) for part in parts]
        low, high = np.array(ends).T
        columns |= {name: np.array(values), f"{name}_low": low, f"{name}_high": high}
    return columns


def interval(
    task: Task, name: str, answers: Answers, g: np.random.Generator
) -> tuple[float, float]:
    """Return the interval of a metric: percentiles over samples of the examples with replacement.

    Both ends are nan if the metric is undefined for most samples. Efron, Annals of Statistics 7(1),
    1979.
    """
    n, nothing = count(answers), (float("nan"), float("nan"))
    if n < 2:
        return nothing
    samples = (select(answers, g.integers(0, n, n)) for _ in range(DRAWS))
    values = np.array([task.compute([name], sample)[0] for sample in samples])
    values = values[np.isfinite(values)]
    if 2 * len(values) < DRAWS:
        return nothing
    low, high = np.quantile(values, [(1 - SURE) / 2, (1 + SURE) / 2])
    return float(low), float(high)


def select(answers: Mapping[str, np.ndarray], rows: np.ndarray) -> Answers:
    """Return the answers to the examples at these positions."""
    return {name: values[rows] for name, values in answers.items()}


def count(answers: Answers) -> int:
    """Return the number of examples of answers."""
    return len(next(iter(answers.values())))
