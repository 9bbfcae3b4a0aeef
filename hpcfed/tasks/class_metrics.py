"""Metrics of classification: formulas of a client's answers, and what they need of probabilities.

scikit-learn computes all but accuracy and those of calibration. Metrics of two classes take the
second for the positive one.
"""

from __future__ import annotations

import numpy as np

from hpcfed.tasks.task import Answers, sigmoid

BINS = 15  # of confidence, of equal width
NONE = -1  # instead of a decision, if no threshold could be chosen


def accuracy(answers: Answers) -> float:
    """Return the share of correct answers."""
    return np.count_nonzero(answers["y"] == answers["predicted"]) / len(answers["y"])


def f1(answers: Answers) -> float:
    """Return the F1 score of the second of two classes: 2 TP / (2 TP + FP + FN).

    It is nan for 0 / 0, if no example is of that class and none is predicted as it.
    """
    from sklearn.metrics import f1_score

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


def macro_roc_auc(answers: Answers) -> float:
    """Return the area under the ROC curve of each class against all others, mean.

    A class that all of these examples have, or none, has no curve and is left out.
    """
    from sklearn.metrics import roc_auc_score

    y, score = answers["y"], probabilities(answers)
    classes = [c for c in np.unique(y) if (y != c).any()]
    areas = [roc_auc_score(y == c, score[:, c]) for c in classes]
    return float(np.mean(areas)) if areas else float("nan")


def macro_pr_auc(answers: Answers) -> float:
    """Return the average precision of each class, mean over the classes that occur among labels."""
    from sklearn.metrics import average_precision_score

    y, score = answers["y"], probabilities(answers)
    return float(np.mean([average_precision_score(y == c, score[:, c]) for c in np.unique(y)]))


def log_loss(answers: Answers) -> float:
    """Return minus the logarithm of the probability of the label's class, mean over examples."""
    from sklearn import metrics

    score = probabilities(answers)
    return metrics.log_loss(answers["y"], score, labels=np.arange(score.shape[1]))


def brier(answers: Answers) -> float:
    """Return the squared error of the probabilities, mean over examples.

    Of two classes that of the second one's probability, 0..1; of more the sum over classes, 0..2.
    Brier, Monthly Weather Review 78(1), 1950.
    """
    score = probabilities(answers)
    errors = np.square(score - np.eye(score.shape[1])[answers["y"]])
    return float(errors.sum(1).mean()) / (2 if score.shape[1] == 2 else 1)


def ece(answers: Answers) -> float:
    """Return the expected calibration error: |accuracy - confidence|, mean over examples by bin.

    Confidence is the probability of the predicted class; 15 bins of it have equal width.
    Guo et al., ICML 2017, arXiv:1706.04599, eq. 3.
    """
    n, confidence, correct = reliability(answers)
    return float(np.abs(confidence - correct).sum() / n.sum())


def reliability(answers: Answers) -> np.ndarray:
    """Return by bin of confidence the examples, the sum of confidences, and the correct answers.

    [3, BINS], float64. Bin b has the confidences above b / BINS, up to (b + 1) / BINS.
    """
    score = probabilities(answers)
    predicted = score.argmax(1)
    confidence = score[np.arange(len(score)), predicted]
    bins = (np.ceil(confidence * BINS) - 1).clip(0, BINS - 1).astype(np.int64)
    weights = (None, confidence, (predicted == answers["y"]).astype(np.float64))
    return np.stack([np.bincount(bins, w, minlength=BINS).astype(np.float64) for w in weights])


def top(k: int, answers: Answers) -> float:
    """Return the share of examples whose class is among the k classes with the largest logits."""
    from sklearn.metrics import top_k_accuracy_score

    logits = answers["logits"]
    classes = np.arange(logits.shape[1])
    return float(top_k_accuracy_score(answers["y"], logits, k=k, labels=classes))


def top_3(answers: Answers) -> float:
    """Return the share of examples whose class is among the three that are most probable."""
    return top(3, answers)


def top_5(answers: Answers) -> float:
    """Return the share of examples whose class is among the five that are most probable."""
    return top(5, answers)


def sensitivity(answers: Answers) -> float:
    """Return the share of positive examples that are recognised, at each client's threshold.

    The threshold is that of the largest sensitivity + specificity on the client's validation
    examples (Youden, Cancer 3(1), 1950). Clients whose validation examples are of one class have
    no value; without a positive example it is nan.
    """
    return recall(answers, 1)


def specificity(answers: Answers) -> float:
    """Return the share of negative examples that are recognised, at each client's threshold.

    The threshold is that of sensitivity.
    """
    return recall(answers, 0)


def recall(answers: Answers, label: int) -> float:
    """Return the share of the examples of a class that are decided right, of those decided."""
    decided = answers["decided"][answers["y"] == label]
    decided = decided[decided != NONE]
    return float((decided == label).mean()) if len(decided) else float("nan")


def probabilities(answers: Answers) -> np.ndarray:
    """Return the probability of each class, [n, C], float64."""
    if "margin" in answers:
        second = sigmoid(answers["margin"])
        return np.stack([sigmoid(-answers["margin"]), second], 1)
    logits = answers["logits"].astype(np.float64)
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def youden(answers: Answers) -> float | None:
    """Return the margin from which on examples are called positive.

    It has the largest sensitivity + specificity on these examples, and lies halfway to the next
    margin below. None: the examples are of one class.
    """
    from sklearn.metrics import roc_curve

    y, margin = answers["y"], answers["margin"].astype(np.float64)
    if len(np.unique(y)) < 2:
        return None
    false, true, thresholds = roc_curve(y, margin, drop_intermediate=False)
    best = float(thresholds[int(np.argmax(true - false))])
    below = margin[margin < best]
    return (best + float(below.max())) / 2 if len(below) else best
