"""Metrics of test predictions, from what models answered; scikit-learn computes all but two.

What a metric does not define is nan: it is left out of means over clients. The names, and which
fits which task, are in `hpcfed.config.metrics`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from hpcfed.config.metrics import METRICS

# What a model answered to n examples, by name, each [n].
# y: labels; predicted: the class of the largest score, unsigned integers of the least size.
# margin: of two classes, score of the second (positive) minus that of the first, float32. It ranks
# examples as the probability of the positive class does, without the ties that its rounding makes.
# Of survival times instead: time; event, whether it was seen (else the time is censored); risk, the
# model's output, float32, higher for shorter times.
Answers = dict[str, np.ndarray]


def import_library() -> None:
    """Import scikit-learn's metrics, which takes seconds: before the first round, not in it."""
    import sklearn.metrics  # noqa: F401


def compute(names: Sequence[str], answers: Answers) -> tuple[float, ...]:
    """These metrics of these answers; nan where one is not defined, or scores are not finite."""
    finite = all(np.isfinite(a).all() for a in answers.values() if a.dtype.kind == "f")
    if not finite or not len(next(iter(answers.values()))):
        return tuple(float("nan") for _ in names)
    with warnings.catch_warnings():  # scikit-learn warns of what is not defined: here it is nan
        warnings.simplefilter("ignore")
        return tuple(float(METRICS[name].load()(answers)) for name in names)


def concat(parts: Sequence[Answers]) -> Answers:
    """Several clients' answers, one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def accuracy(answers: Answers) -> float:
    """Share of correct answers."""
    return np.count_nonzero(answers["y"] == answers["predicted"]) / len(answers["y"])


def f1(answers: Answers) -> float:
    """2 TP / (2 TP + FP + FN) of the second of two classes.

    Nan where that is 0 / 0: no example is of that class, and none is taken for it.
    """
    from sklearn.metrics import f1_score  # here: runs that measure accuracy alone do without

    return f1_score(answers["y"], answers["predicted"], pos_label=1, zero_division=np.nan)


def macro_f1(answers: Answers) -> float:
    """Mean of F1 over the classes that some example is of, or is taken for."""
    from sklearn.metrics import f1_score

    return f1_score(answers["y"], answers["predicted"], average="macro")


def balanced_accuracy(answers: Answers) -> float:
    """Mean of recall over the classes that some example is of (UAR)."""
    from sklearn.metrics import balanced_accuracy_score

    return balanced_accuracy_score(answers["y"], answers["predicted"])


def kappa(answers: Answers) -> float:
    """(p_o - p_e) / (1 - p_e): p_o the share of correct answers, p_e the share that two who answer
    independently, each class as often as labels and predictions do, would have. nan where p_e is 1:
    all labels and all predictions are of one class.

    Cohen, Educational and Psychological Measurement 20(1), 1960.
    """
    from sklearn.metrics import cohen_kappa_score

    return cohen_kappa_score(answers["y"], answers["predicted"])


def pr_auc(answers: Answers) -> float:
    """Average precision, sum over thresholds of (R_n - R_{n-1}) P_n, of the second of two classes.

    Nan without an example of it. No interpolation between the points of the curve.
    """
    from sklearn.metrics import average_precision_score

    if not answers["y"].any():
        return float("nan")
    return average_precision_score(answers["y"], answers["margin"])


def roc_auc(answers: Answers) -> float:
    """Probability that an example of the second class has a higher score than one of the first, a
    tie counts half; nan unless there are examples of both.
    """
    from sklearn.metrics import roc_auc_score

    if len(np.unique(answers["y"])) < 2:
        return float("nan")
    return roc_auc_score(answers["y"], answers["margin"])


def c_index(answers: Answers) -> float:
    """Share of comparable pairs whose shorter time has the higher risk; equal risks count half.

    A pair i, j is comparable where the event of i was seen, and time_i < time_j, or the times are
    equal and j is censored. nan where no pair is. Memory: [n]; time: events times n.
    Harrell, Lee and Mark, Statistics in Medicine 15(4), 1996.
    """
    time, event, risk = answers["time"], answers["event"].astype(bool), answers["risk"]
    pairs = twice = 0  # comparable ones, and two for each that is right, one for a tie
    for i in np.flatnonzero(event):
        later = (time > time[i]) | ((time == time[i]) & ~event)
        others = risk[later]
        pairs += len(others)
        twice += 2 * int((others < risk[i]).sum()) + int((others == risk[i]).sum())
    return twice / (2 * pairs) if pairs else float("nan")
