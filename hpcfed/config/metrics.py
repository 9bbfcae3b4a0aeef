"""Metrics of test predictions: their names, and which fit the task of a data set.

The formulas are in `hpcfed.training.metrics`, which is imported when one is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcfed.core.errors import ConfigError
from hpcfed.core.registry import Entry


@dataclass(frozen=True)
class Metric(Entry):
    """One metric; its target takes Answers and returns a number.

    Larger is better for all metrics.
    title: its name in running text and on axes.  needs: "classes", "two classes" or "survival".
    """

    title: str = ""
    needs: str = "classes"


def _metric(name: str, title: str, line: str, needs: str = "classes", cite: str = "") -> Metric:
    return Metric(f"hpcfed.training.metrics:{name}", line, cite, title, needs)


METRICS = {
    "accuracy": _metric("accuracy", "accuracy", "share of correct answers"),
    "f1": _metric(
        "f1",
        "F1",
        "harmonic mean of precision and recall of the positive (second) of two classes",
        "two classes",
    ),
    "macro_f1": _metric("macro_f1", "macro F1", "F1 of each class against the others, mean"),
    "balanced_accuracy": _metric(
        "balanced_accuracy",
        "balanced accuracy",
        "recall of each class, mean; also called UAR",
    ),
    "kappa": _metric("kappa", "Cohen's kappa", "agreement of predictions and labels beyond chance"),
    "pr_auc": _metric(
        "pr_auc",
        "PR-AUC",
        "average precision of the positive (second) of two classes, ranked by score",
        "two classes",
    ),
    "roc_auc": _metric(
        "roc_auc",
        "ROC-AUC",
        "share of pairs of a positive and a negative example that are ranked right, of two classes",
        "two classes",
    ),
    "c_index": _metric(
        "c_index",
        "C-index",
        "Harrell's: share of comparable pairs of survival times that are ranked right",
        "survival",
    ),
}
TASKS = {  # tasks of data sets, with the metrics that are used if evaluate.metrics is empty
    "classes": ("accuracy",),
    "binary": ("accuracy", "f1", "kappa", "pr_auc", "roc_auc"),
    "next": ("accuracy",),
    "survival": ("c_index",),
}


def fitting(task: str, classes: int) -> list[str]:
    """Return the metrics of a task with this number of classes."""
    kinds = {"survival"} if task == "survival" else {"classes"}
    kinds |= {"two classes"} if classes == 2 and task != "survival" else set()
    return [name for name, metric in METRICS.items() if metric.needs in kinds]


def choose(names: Sequence[str], task: str, classes: int, data: str) -> tuple[str, ...]:
    """Return the metrics that a run measures.

    These are accuracy, if the task has it, and the named metrics, or the usual ones of the task.
    Raises ConfigError for a metric that does not fit the data.
    """
    known = fitting(task, classes)
    for name in names:
        if name not in known:
            asks = "survival times" if task == "survival" else f"{classes:,} classes"
            raise ConfigError(
                f"evaluate.metrics: {name} needs {METRICS[name].needs}, but {data} has {asks} "
                f"(task {task!r})\n  metrics of these data: {', '.join(known)}"
            )
    first = [name for name in ("accuracy",) if name in known]
    return tuple(dict.fromkeys([*first, *(names or TASKS[task])]))
