"""Tasks: what the labels of data sets are. One file each, and one line in the registry below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcfed.core.errors import ConfigError, DataError
from hpcfed.core.registry import Entry, find
from hpcfed.tasks import custom
from hpcfed.tasks.task import Answers as Answers
from hpcfed.tasks.task import Metric as Metric
from hpcfed.tasks.task import Task as Task

TASKS = {
    "classification": Entry("hpcfed.tasks.classification:Classification", "one class per example"),
    "binary": Entry("hpcfed.tasks.binary:Binary", "two classes, the second positive and rare"),
    "next": Entry("hpcfed.tasks.next_token:NextToken", "the token that follows a text"),
    "survival": Entry("hpcfed.tasks.survival:Survival", "the time to an event, or of censoring"),
    "regression": Entry("hpcfed.tasks.regression:Regression", "numbers to predict, one or several"),
    "multilabel": Entry("hpcfed.tasks.multilabel:Multilabel", "several labels per example"),
}
METRICS: dict[str, Metric] = {}  # of all tasks, by name
for _entry in TASKS.values():
    METRICS |= {name: m for name, m in _entry.load().metrics.items() if name not in METRICS}


def described(name: str) -> Metric | None:
    """Return the metric of this name, which may be a "module:function"; None if there is none.

    Nothing is imported, and it cannot be computed without its task (`Task.metric`).
    """
    return custom.metric(name) if ":" in name else METRICS.get(name)


def make(name: str) -> Task:
    """Return the task of this name; raises ConfigError for an unknown one."""
    return find("task", name, TASKS).load()()


def from_facts(facts: Mapping[str, Any]) -> Task:
    """Return the task from `Task.facts`, read from JSON; raises ConfigError for other values."""
    cls = find("task", str(facts.get("name")), TASKS).load()
    try:
        numbers = {name: tuple(map(float, row)) for name, row in facts.items() if name != "name"}
        return cls(**numbers)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"task {facts['name']!r}: {error}") from error


def infer(y: np.ndarray, where: str) -> Task:
    """Return the task of labels of which nothing is known but their values.

    Raises DataError if they may be of several tasks.
    """
    tasks = [entry.load()() for entry in TASKS.values()]
    certain = [task for task in tasks if task.infers(y)]
    if len(certain) == 1:
        return certain[0]
    several = [task for task in tasks if not task.has_classes]
    choices = " or ".join(f"{task.labels} ({task.name!r})" for task in several)
    raise DataError(
        f"{where}: {y.dtype} {list(y.shape)} may be {choices}; say which: data.task, or in an HDF5 "
        f"file the attribute task; one class per example is stored as [n]"
    )
