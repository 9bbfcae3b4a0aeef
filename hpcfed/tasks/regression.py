"""Regression: each example has one or several numbers, which a model predicts.

Each target is standardised by mean and deviation of the training part, as inputs are, so that
learning rates mean the same for prices and for shares, and several targets have equal weights in
the loss. Metrics, and what a trained model predicts, have the unit of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hpcfed.core.errors import first_bad
from hpcfed.tasks.task import Answers, Metric, Task, fractional, numbers

if TYPE_CHECKING:
    from torch import Tensor


def mse(answers: Answers) -> float:
    """Return the squared error, mean over examples and targets."""
    return float(np.square(answers["y"] - answers["predicted"]).mean())


def mae(answers: Answers) -> float:
    """Return the absolute error, mean over examples and targets."""
    return float(np.abs(answers["y"] - answers["predicted"]).mean())


def r2(answers: Answers) -> float:
    """Return the share of the targets' variance that is explained, mean over targets.

    1 - sum of squared errors / sum of squared differences to the mean. A target that does not vary
    among these examples is left out; the result is nan if none does.
    """
    y = answers["y"]
    errors, spread = np.square(y - answers["predicted"]).sum(0), np.square(y - y.mean(0)).sum(0)
    varies = y.max(0) > y.min(0)  # the mean of equal values is rounded, so spread may be above 0
    return float((1 - errors[varies] / spread[varies]).mean()) if varies.any() else float("nan")


@dataclass(frozen=True)
class Regression(Task):
    """Targets, [n, m], float32, standardised; a model has an output for each.

    mean, std: of each target, of the training part; std is 1 for a target that does not vary.
    Answers: y and predicted, [n, m], float64, in the unit of the data.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    name: ClassVar[str] = "regression"
    labels: ClassVar[str] = "numbers to predict"
    columns: ClassVar[Mapping[str, str]] = {"target": "target"}
    metrics: ClassVar[Mapping[str, Metric]] = {
        "mse": Metric("MSE", "squared error, mean", mse, high=False, share=False, each=True),
        "mae": Metric("MAE", "absolute error, mean", mae, high=False, share=False, each=True),
        "r2": Metric("R²", "share of the targets' variance that is explained", r2),
    }
    usual: ClassVar[tuple[str, ...]] = ("mse", "mae", "r2")

    def infers(self, y: np.ndarray) -> bool:
        """Return whether most of these are fractions, one per example."""
        return (y.ndim == 1 or y.shape[1:] == (1,)) and fractional(y)

    def check(self, y: np.ndarray, n: int, where: str) -> np.ndarray:
        columns = numbers(y, n, where, "targets")
        first_bad(columns, ~np.isfinite(columns), where, "a target is a finite number")
        return columns

    def output_names(
        self, names: Sequence[str] | None, parts: Sequence[np.ndarray], where: Sequence[str]
    ) -> tuple[str, ...]:
        defaults = [f"target {i}" for i in range(1, parts[0].shape[1] + 1)]
        return super().output_names(defaults if names is None else names, parts, where)

    def fit(self, train: np.ndarray, test: np.ndarray) -> tuple[Task, np.ndarray, np.ndarray]:
        mean, std = train.mean(0), train.std(0)
        std[std <= 1e-12 * np.abs(mean)] = 1.0
        task = Regression(tuple(mean.tolist()), tuple(std.tolist()))
        return task, task.prepare(train), task.prepare(test)

    def prepare(self, y: np.ndarray) -> np.ndarray:
        return ((y - np.array(self.mean)) / np.array(self.std)).astype(np.float32)

    def adopt(
        self, y: np.ndarray, names: Sequence[str], other: Task, others: Sequence[str]
    ) -> np.ndarray:
        """Return targets of other data, standardised as those of these data."""
        if not isinstance(other, Regression) or len(others) != len(names):
            return y
        return self.prepare(y * np.array(other.std) + np.array(other.mean))

    def describe(self, outputs: int) -> str:
        return "a number to predict" if outputs == 1 else f"{outputs:,} numbers to predict"

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the squared error of standardised targets, mean over examples and targets."""
        from torch.nn.functional import mse_loss

        return mse_loss(output, y)

    def predict(self, output: Tensor) -> Tensor:
        """Return predictions in the unit of the data."""
        mean, std = (output.new_tensor(values) for values in (self.mean, self.std))
        return output * std + mean

    def answers(self, output: Tensor, y: Tensor) -> Answers:
        mean, std = np.array(self.mean), np.array(self.std)
        pairs = {"y": y, "predicted": output}
        return {
            name: values.cpu().numpy().astype(np.float64) * std + mean
            for name, values in pairs.items()
        }

    def scored(self, answers: Answers) -> tuple[np.ndarray, np.ndarray]:
        """Return targets and predictions, [n] for one target, else [n, m]."""
        y, predicted = answers["y"], answers["predicted"]
        return (y[:, 0], predicted[:, 0]) if y.shape[1] == 1 else (y, predicted)
