"""Metrics of the user's own: functions (labels, scores) -> number, named "module:function".

labels: [n], as the data have them: classes as 0..C-1, numbers, or [n, 2] of survival: time and
event, or [n, C] of several labels.
scores: of two classes the probability of the second, [n]; of more the probabilities, [n, C]; of
several labels their probabilities, [n, C]; of numbers the predictions; of survival the logarithm of
the risk, [n]. So most functions of sklearn.metrics on scores are metrics as they are.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hpcfed.core import user_code
from hpcfed.core.errors import ConfigError, first_line
from hpcfed.tasks.task import Metric

if TYPE_CHECKING:
    from hpcfed.tasks.task import Answers, Task

FORM = "module:function"
# as in scikit-learn: the name of a function that is to be minimised ends in one of these
LOW = ("_error", "_loss", "_deviance", "_cost")


def metric(name: str, task: Task | None = None) -> Metric:
    """Return the metric of this "module:function"; nothing is imported before it is computed.

    task: that of the answers; None if nothing is to be computed.
    """
    title = name.partition(":")[2]
    return Metric(
        title,
        f"a metric of yours, {name}",
        partial(evaluate, name, task),
        high=not title.endswith(LOW),
        share=False,
        probabilities=True,
    )


def check(name: str) -> None:
    """Import the function; raises ConfigError if there is none."""
    if not callable(user_code.load("evaluate.metrics", name, FORM)):
        raise ConfigError(
            f"evaluate.metrics: {name} is not a function of (labels, scores) that returns a number"
        )


def evaluate(name: str, task: Task | None, answers: Answers) -> float:
    """Return the user's metric of these answers; raises OwnError if that fails.

    What it draws from global generators is the same in each call, also in another process.
    """
    from hpcfed.core import rng  # here: metrics are listed without torch

    assert task is not None  # of `Task.metric`
    function = user_code.load("evaluate.metrics", name, FORM)
    labels, scores = task.scored(answers)
    try:
        with rng.scoped(0, "metric", name, everywhere=True):  # for a bootstrap
            result = function(labels, scores)
        value = np.asarray(result, dtype=float)
    except Exception as error:
        raise user_code.OwnError(
            f"{user_code.line_of(function)}: the metric {name} of labels {list(labels.shape)} and "
            f"scores {list(scores.shape)} raises {type(error).__name__}: {first_line(error)}; "
            f"return nan where it is not defined"
        ) from error
    if result is None:  # of which NumPy makes nan
        raise user_code.OwnError(
            f"{user_code.line_of(function)}: the metric {name} returns None (is a `return` "
            f"missing?); return a number"
        )
    if value.size != 1:
        raise user_code.OwnError(
            f"{user_code.line_of(function)}: the metric {name} returns {list(value.shape)} "
            f"numbers; return one"
        )
    return float(value.reshape(()))
