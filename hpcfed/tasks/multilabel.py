"""Several labels per example: each of C labels is there or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hpcfed.core.errors import first_bad
from hpcfed.tasks.task import Answers, Metric, Task, numbers, sigmoid

if TYPE_CHECKING:
    from torch import Tensor


def macro_auc(answers: Answers) -> float:
    """Return the area under the ROC curve of each label, mean.

    A label that all of these examples have, or none, has no curve and is left out; the result is
    nan if that holds for all labels.
    """
    from sklearn.metrics import roc_auc_score

    y, score = answers["y"], answers["score"]
    both = (y.min(0) < y.max(0)).nonzero()[0]
    areas = [roc_auc_score(y[:, c], score[:, c]) for c in both]
    return float(np.mean(areas)) if areas else float("nan")


def macro_pr_auc(answers: Answers) -> float:
    """Return the average precision of each label, mean over the labels that some example has."""
    from sklearn.metrics import average_precision_score

    y, score = answers["y"], answers["score"]
    areas = [average_precision_score(y[:, c], score[:, c]) for c in y.max(0).nonzero()[0]]
    return float(np.mean(areas)) if areas else float("nan")


def macro_f1(answers: Answers) -> float:
    """Return F1 of each label, mean.

    A label that no example has and for which none is predicted is left out.
    """
    from sklearn.metrics import f1_score

    return f1_score(*answered(answers), average="macro", zero_division=np.nan)


def micro_f1(answers: Answers) -> float:
    """Return F1 of all labels together: 2 TP / (2 TP + FP + FN); nan for 0 / 0."""
    from sklearn.metrics import f1_score

    return f1_score(*answered(answers), average="micro", zero_division=np.nan)


def answered(answers: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and predictions, [n, C] of 0 and 1, with two labels at least.

    scikit-learn takes a single column for classes, and computes its F1 for both of them.
    """
    y, predicted = answers["y"], (answers["score"] > 0).astype(np.uint8)
    if y.shape[1] > 1:
        return y, predicted
    nothing = np.zeros_like(y)
    return np.hstack([y, nothing]), np.hstack([predicted, nothing])


@dataclass(frozen=True)
class Multilabel(Task):
    """Labels, [n, C], float32, 0 or 1; a model has a logit for each, and answers 1 above 0.

    Answers: y, [n, C], uint8, and score, the logits, [n, C], float32.
    """

    name: ClassVar[str] = "multilabel"
    labels: ClassVar[str] = "several labels per example"
    categories: ClassVar[bool] = True
    columns: ClassVar[Mapping[str, str]] = {"labels": "label"}
    metrics: ClassVar[Mapping[str, Metric]] = {
        "macro_auc": Metric("macro AUC", "ROC-AUC of each label, mean", macro_auc),
        "macro_pr_auc": Metric(
            "macro PR-AUC", "average precision of each class or label, mean", macro_pr_auc
        ),
        "macro_f1": Metric("macro F1", "F1 of each class or label, mean", macro_f1),
        "micro_f1": Metric("micro F1", "F1 of all labels together", micro_f1),
    }
    usual: ClassVar[tuple[str, ...]] = ("macro_auc", "macro_f1")

    def check(self, y: np.ndarray, n: int, where: str) -> np.ndarray:
        columns = numbers(y, n, where, "labels")
        first_bad(columns, (columns != 0) & (columns != 1), where, "a label is 1 (there) or 0")
        return columns.astype(np.float32)

    def counts(self, y: np.ndarray, outputs: int) -> np.ndarray:
        """Return the number of examples that have each label."""
        return y.sum(0).astype(np.int64)

    def describe(self, outputs: int) -> str:
        return f"several of {outputs:,} labels per example"

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the binary cross-entropy, mean over examples and labels."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        return binary_cross_entropy_with_logits(output, y)

    def soft(self, output: Tensor) -> Tensor:
        """Return the probability of each label."""
        return output.double().sigmoid()

    def report(
        self, soft: np.ndarray, names: Sequence[str] | Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Return the probability of each label."""
        return {f"probability_{name}": soft[:, c] for c, name in enumerate(names)}

    def answers(self, output: Tensor, y: Tensor) -> Answers:
        return {"y": y.cpu().numpy().astype(np.uint8), "score": output.cpu().numpy()}

    def scored(self, answers: Answers) -> tuple[np.ndarray, np.ndarray]:
        """Return labels and their probabilities, [n, C]."""
        return answers["y"].astype(np.int64), sigmoid(answers["score"])
