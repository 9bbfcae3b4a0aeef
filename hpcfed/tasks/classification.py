"""Classification: each example has one class, 0..C-1. Its metrics: `class_metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hpcfed.core.errors import DataError, first_bad
from hpcfed.core.wording import join_few
from hpcfed.tasks.class_metrics import (
    NONE,
    accuracy,
    balanced_accuracy,
    brier,
    ece,
    f1,
    kappa,
    log_loss,
    macro_f1,
    macro_pr_auc,
    macro_roc_auc,
    pr_auc,
    probabilities,
    reliability,
    roc_auc,
    sensitivity,
    specificity,
    top_3,
    top_5,
    youden,
)
from hpcfed.tasks.task import Answers, Metric, Task, fractional

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 2**31  # maximum label; no array in memory is larger
FEW = 8  # classes that a message names
TINY = 1e-12
MOST_CLASSES, MOST_CELLS = 30, 10**6  # of which clients' confusion is recorded


@dataclass(frozen=True)
class Classification(Task):
    """One class per example; a model's outputs are logits.

    Answers: y, labels, and predicted, the class of the largest logit, both unsigned integers of the
    least size; for two classes also margin, logit of the second minus that of the first, float32.
    It ranks examples as the probability of the second class does, without ties due to rounding. For
    more classes also logits, [n, C], float32, if a metric needs probabilities. With a threshold
    also decided, int8: 1, 0, or NONE.

    weights: of each class in the loss; (): equal.  focal: focusing parameter of the focal loss; 0:
    cross-entropy. Both are of a client's training and no facts about the data.
    """

    weights: tuple[float, ...] = ()
    focal: float = 0.0

    name: ClassVar[str] = "classification"
    labels: ClassVar[str] = "classes"
    has_classes: ClassVar[bool] = True
    categories: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "accuracy": Metric(
            "accuracy", "share of correct answers", accuracy, counted=True, each=True
        ),
        "f1": Metric(
            "F1",
            "harmonic mean of precision and recall of the positive (second) of two classes",
            f1,
            outputs=2,
        ),
        "macro_f1": Metric("macro F1", "F1 of each class or label, mean", macro_f1),
        "balanced_accuracy": Metric(
            "balanced accuracy", "recall of each class, mean; also called UAR", balanced_accuracy
        ),
        "kappa": Metric(
            "Cohen's kappa", "agreement of predictions and labels beyond chance", kappa
        ),
        "pr_auc": Metric(
            "PR-AUC",
            "average precision of the positive (second) of two classes, ranked by score",
            pr_auc,
            outputs=2,
        ),
        "roc_auc": Metric(
            "ROC-AUC",
            "share of pairs of a positive and a negative example that are ranked right, of two "
            "classes",
            roc_auc,
            outputs=2,
        ),
        "sensitivity": Metric(
            "sensitivity",
            "share of positive examples that are recognised, at a threshold chosen on validation",
            sensitivity,
            outputs=2,
            threshold=True,
        ),
        "specificity": Metric(
            "specificity",
            "share of negative examples that are recognised, at a threshold chosen on validation",
            specificity,
            outputs=2,
            threshold=True,
        ),
        "macro_roc_auc": Metric(
            "macro ROC-AUC",
            "ROC-AUC of each class against all others, mean",
            macro_roc_auc,
            more_than=2,
            probabilities=True,
        ),
        "macro_pr_auc": Metric(
            "macro PR-AUC",
            "average precision of each class or label, mean",
            macro_pr_auc,
            more_than=2,
            probabilities=True,
        ),
        "top_3": Metric(
            "top-3 accuracy",
            "share of examples whose class is among the three that are most probable",
            top_3,
            more_than=3,
            probabilities=True,
        ),
        "top_5": Metric(
            "top-5 accuracy",
            "share of examples whose class is among the five that are most probable",
            top_5,
            more_than=5,
            probabilities=True,
        ),
        "log_loss": Metric(
            "log-loss",
            "minus the logarithm of the probability of the right class, mean",
            log_loss,
            high=False,
            share=False,
            each=True,
            probabilities=True,
        ),
        "brier": Metric(
            "Brier score",
            "squared error of the probabilities, mean",
            brier,
            high=False,
            share=False,
            each=True,
            probabilities=True,
        ),
        "ece": Metric(
            "ECE",
            "expected calibration error: difference of accuracy and confidence, mean over 15 bins",
            ece,
            high=False,
            probabilities=True,
        ),
    }
    usual: ClassVar[tuple[str, ...]] = ("accuracy",)

    def infers(self, y: np.ndarray) -> bool:
        """Return whether these are words or integers, one per example, at least mostly."""
        single = y.ndim == 1 or y.shape[1:] == (1,)
        return single and not fractional(y)

    def check(self, y: np.ndarray, n: int, where: str) -> np.ndarray:
        return labels(y, n, where)

    def output_names(
        self, names: Sequence[str] | None, parts: Sequence[np.ndarray], where: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the class names: those given, else "0".."C-1" with C from the largest label.

        Raises DataError for a label outside the names; without names, for a label >= n.
        """
        if names is None:
            below(parts[0], len(parts[0]), where[0])
            C = int(parts[0].max()) + 1
            advice = (
                f"the training labels are 0..{C - 1}: give each class a training example, or name "
                f"all classes (classes); for numbers to predict set data.task = 'regression'"
            )
        else:
            C = len(names)
            advice = (
                f"labels lie in 0..{C - 1}, as the classes are {join_few(names, FEW)}; correct the "
                f"label, or name all classes"
            )
        for y, place in zip(parts, where, strict=True):
            first_bad(y, y >= C, place, advice)
        return tuple(map(str, range(C) if names is None else names))

    def adopt(
        self, y: np.ndarray, names: Sequence[str], other: Task, others: Sequence[str]
    ) -> np.ndarray:
        """Return classes of other data as those of these data that have the same names.

        Other classes follow on them. If no class is in both, all keep their numbers.
        """
        if not other.has_classes or not set(names) & set(others):
            return y
        numbers = {name: c for c, name in enumerate(names)}
        for name in others:
            numbers.setdefault(name, len(numbers))
        return np.array([numbers[name] for name in others], y.dtype)[y]

    def strata(self, y: np.ndarray) -> np.ndarray:
        return y

    def counts(self, y: np.ndarray, outputs: int) -> np.ndarray:
        return np.bincount(y, minlength=outputs)

    def describe(self, outputs: int) -> str:
        return f"{outputs:,} classes"

    def oddities(self, y: np.ndarray, names: Sequence[str], complete: bool) -> list[str]:
        """Return sentences on classes that have no example or only one."""
        number = np.bincount(y, minlength=len(names))
        odd = []
        if (empty := np.flatnonzero(number == 0).tolist()) and not complete:
            numbered = tuple(names) == tuple(map(str, range(len(names))))
            advice = (
                "labels are expected to be 0, 1, 2, ... without gaps: renumber them if these "
                "classes do not exist"
                if numbered
                else "check the labels and their spelling, or leave these classes out"
            )
            odd.append(
                f"{len(empty)} of {len(names)} classes have no training example "
                f"({join_few([names[c] for c in empty], FEW)}); {advice}"
            )
        if np.count_nonzero(number) == 1:
            only = names[int(number.argmax())]
            return [*odd, f"all training examples have the label {only}; there is nothing to learn"]
        if single := self.rare(number):
            rare = join_few([names[c] for c in single], FEW)
            odd.append(
                f"{len(single)} of {len(names)} classes have a single training example ({rare}); "
                f"leave them out, unless that is meant"
            )
        return odd

    def rare(self, number: np.ndarray) -> list[int]:
        """Return the classes that are oddly rare. number: training examples of each class."""
        return np.flatnonzero(number == 1).tolist()

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy, or with weights w and focal = gamma the focal loss.

        sum_i w_i (1 - p_i)^gamma (-log p_i) / sum_i w_i, where p_i is the probability of the
        example's class and w_i the weight of that class. y: [n], classes.
        Lin et al., ICCV 2017, arXiv:1708.02002, eq. 5.
        """
        from torch.nn.functional import cross_entropy

        if not self.weights and not self.focal:
            return cross_entropy(output, y)
        losses = cross_entropy(output, y, reduction="none")
        if self.focal:
            wrong = (-(-losses).expm1()).clamp(min=TINY)  # 1 - p; a power below 1 has no slope at 0
            losses = wrong**self.focal * losses
        if not self.weights:
            return losses.mean()
        weights = on_device(self.weights, output.device)[y]
        return (weights * losses).sum() / weights.sum()

    def facts(self) -> dict[str, Any]:
        facts = super().facts()
        del facts["weights"], facts["focal"]  # of a client's training
        return facts

    def soft(self, output: Tensor) -> Tensor:
        """Return the probability of each class."""
        return output.double().softmax(1)

    def report(
        self, soft: np.ndarray, names: Sequence[str] | Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Return the class of the largest probability, and the probability of each class."""
        integers = all(isinstance(name, int) for name in names)
        classes = np.array(names, np.int64 if integers else object)[soft.argmax(1)]
        return {"class": classes} | {f"probability_{n}": soft[:, c] for c, n in enumerate(names)}

    def score(
        self, batches: Iterable[tuple[Tensor, Tensor]], metrics: Sequence[str], keep: bool = False
    ) -> tuple[float, float, float, Answers | None]:
        """Return accuracy, mean cross-entropy, and the answers if metrics need more than accuracy.

        Before the answers stands the class, if all predictions are one; nan otherwise.
        Logits are kept only if a metric needs them: a batch adds to two sums on the device.
        A derived task with another main metric or loss gets these instead.
        """
        import torch
        from torch.nn.functional import cross_entropy

        if self.main != Classification.usual[0] or type(self).loss is not Classification.loss:
            output, y = map(torch.cat, zip(*batches, strict=True))
            answers = self.answers(output.float(), y)
            mean_loss = float(self.loss(output.double(), y))
            return self.compute((self.main,), answers)[0], mean_loss, float("nan"), answers

        ends: list[Tensor] = []
        total, n, parts = None, 0, []
        wanted = keep or tuple(metrics) != (self.main,)
        logits_wanted = wanted and self.needs(metrics, "probabilities")
        for logits, y in batches:
            classes = logits.argmax(1)
            right, loss = (classes == y).sum(), cross_entropy(logits, y, reduction="sum")
            ends += classes.aminmax()
            batch = torch.stack([right.double(), loss.double()])
            total, n = (batch if total is None else total + batch), n + len(y)
            if wanted:
                parts.append({"y": y} | predictions(logits, logits_wanted))
        assert total is not None  # there is a batch
        bounds = torch.stack(torch.stack(ends).aminmax()).double()
        correct, loss, low, high = torch.cat([total / n, bounds]).tolist()
        one_class = low if low == high else float("nan")
        if not wanted:
            return correct, loss, one_class, None
        tensors = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return correct, loss, one_class, to_arrays(tensors, logits.shape[1])

    def answers(self, output: Tensor, y: Tensor) -> Answers:
        return to_arrays({"y": y} | predictions(output, keep=True), output.shape[1])

    def scored(self, answers: Answers) -> tuple[np.ndarray, np.ndarray]:
        """Return classes, and probabilities: of the second of two, [n], else of each, [n, C]."""
        score = probabilities(answers)
        return answers["y"].astype(np.int64), score[:, 1] if score.shape[1] == 2 else score

    def charts(self, metrics: Sequence[str]) -> bool:
        return "ece" in metrics

    def chart(self, metrics: Sequence[str], answers: Sequence[Answers], outputs: int) -> Answers:
        """Return for "ece" the `reliability` of each client, [clients, 3 BINS].

        Of few classes and clients also the `confusion` of each client: examples by class and
        predicted class, [clients, C C].
        """
        charts = {}
        if outputs <= MOST_CLASSES and len(answers) * outputs**2 <= MOST_CELLS:
            pairs = [one["y"].astype(np.int64) * outputs + one["predicted"] for one in answers]
            cells = [np.bincount(pair, minlength=outputs**2) for pair in pairs]
            charts["confusion"] = np.stack(cells)
        if "ece" in metrics:
            charts["reliability"] = np.stack([reliability(one).ravel() for one in answers])
        return charts

    def decide(self, answers: Answers, held_out: Answers | None) -> Answers:
        """Return the answers with `decided`, by the threshold of the client's own examples."""
        threshold = youden(held_out) if held_out else None
        if threshold is None:
            decided = np.full(len(answers["y"]), NONE, np.int8)
        else:
            decided = (answers["margin"] >= threshold).astype(np.int8)
        return answers | {"decided": decided}


def on_device(weights: tuple[float, ...], device: Any) -> Tensor:
    """Return the weights of the classes, [C], on a device."""
    import torch

    # on a CPU made anew, since a step that is recorded would leave a tensor without values
    return torch.tensor(weights) if device.type == "cpu" else on_gpu(weights, device)


@cache
def on_gpu(weights: tuple[float, ...], device: Any) -> Tensor:
    """Return the weights of the classes, [C], for whose copy to a GPU a step would wait."""
    import torch

    return torch.tensor(weights, device=device)


def inverse_frequencies(counts: np.ndarray) -> tuple[float, ...]:
    """Return weights of classes so that all have the same weight together: n / (C n_c).

    counts: [C], examples of each class.  C: classes that have examples; the others get 1.
    """
    present = counts > 0
    weights = counts.sum() / (np.count_nonzero(present) * np.maximum(counts, 1))
    return tuple(np.where(present, weights, 1.0).tolist())


def predictions(logits: Tensor, keep: bool) -> dict[str, Tensor]:
    """Return the predicted classes, [b]; for two classes also the margins, [b].

    keep: return also the logits of more classes, [b, C].
    """
    answers = {"predicted": logits.argmax(1)}
    if logits.shape[1] == 2:
        return answers | {"margin": (logits[:, 1] - logits[:, 0]).float()}
    return answers | ({"logits": logits.float()} if keep else {})


def to_arrays(answers: dict[str, Tensor], outputs: int) -> Answers:
    """Return answers on the host, with classes as small integers."""
    arrays = {name: tensor.cpu().numpy() for name, tensor in answers.items()}
    small = np.min_scalar_type(outputs - 1)  # one byte, up to 256 classes
    return arrays | {name: arrays[name].astype(small) for name in ("y", "predicted")}


def labels(y: np.ndarray, n: int, where: str) -> np.ndarray:
    """Return labels as [n], int64, >= 0; [n, 1] and whole floats are accepted.

    Raises DataError.
    """
    if y.shape == (n, 1):
        y = y[:, 0]
    if y.shape != (n,):
        raise DataError(
            f"{where}: shape {list(y.shape)}, but there are {n} examples; store one label an "
            f"example"
        )
    if y.dtype.kind not in "iuf":
        raise DataError(f"{where}: dtype {y.dtype} is not a label; store int64, 0..C-1")
    if y.dtype.kind == "f":
        first_bad(
            y,
            ~np.isfinite(y) | (y != np.round(y)),
            where,
            "a label is a whole number, 0..C-1; "
            "for numbers to predict set data.task = 'regression'",
        )
    first_bad(y, (y < 0) | (y > LARGEST), where, "a label lies in 0..C-1")
    return y.astype(np.int64)


def below(y: np.ndarray, n_classes: int, where: str) -> None:
    """Raise DataError for a label that is not below n_classes."""
    first_bad(
        y,
        y >= n_classes,
        where,
        f"a label lies in 0..C-1, and C is at most {n_classes} here; for numbers to predict set "
        f"data.task = 'regression'",
    )
