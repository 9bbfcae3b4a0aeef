"""Metrics of test predictions, from the answers of models.

scikit-learn computes all but accuracy and the concordance index. An undefined metric is nan, and is
left out of means over clients. The names of metrics, and the tasks that they fit, are in
`hpcfed.config.metrics`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from hpcfed.config.metrics import METRICS

# A model's answers to n examples, by name, each [n].
# y: labels; predicted: the class of the largest score, unsigned integers of the least size.
# margin: for two classes, score of the second (positive) minus that of the first, float32. It ranks
# examples as the probability of the positive class does, without ties due to rounding.
# For survival times instead: time; event, whether it was observed (else the time is censored);
# risk, the model's output, float32, higher for shorter times.
Answers = dict[str, np.ndarray]


def import_library() -> None:
    """Import scikit-learn's metrics before the first round, because that takes seconds."""
    import sklearn.metrics  # noqa: F401


def compute(names: Sequence[str], answers: Answers) -> tuple[float, ...]:
    """Return these metrics of these answers; nan if undefined, or if scores are not finite."""
    finite = all(np.isfinite(a).all() for a in answers.values() if a.dtype.kind == "f")
    if not finite or not len(next(iter(answers.values()))):
        return tuple(float("nan") for _ in names)
    with warnings.catch_warnings():  # scikit-learn warns of undefined values, which are nan here
        warnings.simplefilter("ignore")
        return tuple(float(METRICS[name].load()(answers)) for name in names)


def concat(parts: Sequence[Answers]) -> Answers:
    """Return several clients' answers, one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def accuracy(answers: Answers) -> float:
    """Return the share of correct answers."""
    return np.count_nonzero(answers["y"] == answers["predicted"]) / len(answers["y"])


def f1(answers: Answers) -> float:
    """Return the F1 score of the second of two classes: 2 TP / (2 TP + FP + FN).

    It is nan for 0 / 0, if no example is of that class and none is predicted as it.
    """
    from sklearn.metrics import (
        f1_score,
    )  # imported here: runs that measure accuracy alone do not need it

    return f1_score(answers["y"], answers["predicted"], pos_label=1, zero_division=np.nan)


def macro_f1(answers: Answers) -> float:
    """Return the mean of F1 over the classes that occur among labels or predictions."""
    from sklearn.metrics import f1_score

    return f1_score(answers["y"], answers["predicted"], average="macro")


def balanced_accuracy(answers: Answers) -> float:
    """Return the mean of recall over the classes that occur among labels (UAR)."""
    from sklearn.metrics import balanced_accuracy_score

    return balanced_accuracy_score(answers["y"], answers["predicted"])


def kappa(answers: Answers) -> float:
    """Return Cohen's kappa, (p_o - p_e) / (1 - p_e).

    p_o: share of correct answers.  p_e: share of correct answers expected by chance, if labels and
    predictions were independent with the same class frequencies. The result is nan if p_e is 1,
    that is if all labels and all predictions are of one class.
    Cohen, Educational and Psychological Measurement 20(1), 1960.
    """
    from sklearn.metrics import cohen_kappa_score

    return cohen_kappa_score(answers["y"], answers["predicted"])


def pr_auc(answers: Answers) -> float:
    """Return the average precision of the second of two classes; nan without an example of it.

    It is the sum over thresholds of (R_n - R_{n-1}) P_n, without interpolation between the points
    of the curve.
    """
    from sklearn.metrics import average_precision_score

    if not answers["y"].any():
        return float("nan")
    return average_precision_score(answers["y"], answers["margin"])


def roc_auc(answers: Answers) -> float:
    """Return the area under the ROC curve of two classes; nan unless both occur.

    It is the probability that an example of the second class has a higher score than one of the
    first; a tie counts half.
    """
    from sklearn.metrics import roc_auc_score

    if len(np.unique(answers["y"])) < 2:
        return float("nan")
    return roc_auc_score(answers["y"], answers["margin"])


def c_index(answers: Answers) -> float:
    """Return the share of comparable pairs whose shorter time has the higher risk.

    Equal risks count half. A pair i, j is comparable if the event of i was observed, and time_i <
    time_j, or the times are equal and j is censored. The result is nan without comparable pairs.
    Memory: [n]; time: events times n.
    Harrell, Lee and Mark, Statistics in Medicine 15(4), 1996.
    """
    time, event, risk = answers["time"], answers["event"].astype(bool), answers["risk"]
    pairs = twice = 0  # comparable pairs; 2 for each correct pair and 1 for a tie
    for i in np.flatnonzero(event):
        later = (time > time[i]) | ((time == time[i]) & ~event)
        others = risk[later]
        pairs += len(others)
        twice += 2 * int((others < risk[i]).sum()) + int((others == risk[i]).sum())
    return twice / (2 * pairs) if pairs else float("nan")
