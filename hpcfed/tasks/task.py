"""Tasks: what the labels of a data set are, how they are learned, and how predictions are scored.

A task is one file of this room, and one line of the registry (`hpcfed.tasks`). It comes with the
data set, and nothing else in the code asks for the type of labels. Modules of this room
import torch and scikit-learn inside functions, because readers of results need titles and formats
of metrics, but neither library.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hpcfed.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

# A model's answers to n examples, by name, each [n] or [n, C]: what metrics are computed from.
Answers = dict[str, np.ndarray]


@dataclass(frozen=True)
class Metric:
    """A number that says how good answers are.

    title: its name in running text and on axes.  line: description.  cite: keys of references.bib.
    formula: of answers; nan where it is not defined.
    high: whether higher is better.  share: whether it lies in 0..1, or is at most 1, so that four
    decimals and percent are its formats; other metrics have the unit of the labels.
    outputs: the number of outputs that it needs; 0: any.
    more_than: the number of outputs that it needs more than.
    counted: whether it is the share of right answers, so that numbers of examples are all that the
    pooled metric needs.
    each: whether it is the mean of what each example contributes, so that it is defined for a
    single example; hyper-parameters are chosen by such a metric, otherwise by the loss.
    probabilities: whether it needs the probability of each class, which takes 4 bytes per class and
    example.
    threshold: whether it needs a threshold that is chosen on validation examples.
    """

    title: str
    line: str
    formula: Callable[[Answers], float]
    high: bool = True
    share: bool = True
    outputs: int = 0
    more_than: int = 0
    counted: bool = False
    each: bool = False
    probabilities: bool = False
    threshold: bool = False
    cite: str = ""


@dataclass(frozen=True)
class Task:
    """Base class of tasks, a frozen record; fields hold what was measured on the training labels.

    name: in jobs, files and results.
    labels: what the labels are, in messages.
    has_classes: whether each example has one class, 0..C-1; methods and partitions that need
    classes refuse other tasks.
    categories: whether outputs are categories (classes, labels), whose examples can be counted.
    n_outputs: the number of outputs that models must have; 0: it follows from the labels.
    compares_examples: whether the loss compares the examples of a batch, so that it is no mean of
    losses of single ones.
    columns: the fields of [columns] that name a table's columns of labels, and what these columns
    are, in words; a field other than `label` names the task too.
    metrics: all that can be measured.  usual: those that are measured if the job names none; the
    first one is the main metric, which is always measured.
    """

    name: ClassVar[str]
    labels: ClassVar[str]
    has_classes: ClassVar[bool] = False
    categories: ClassVar[bool] = False
    n_outputs: ClassVar[int] = 0
    compares_examples: ClassVar[bool] = False
    columns: ClassVar[Mapping[str, str]] = {"label": "label"}
    metrics: ClassVar[Mapping[str, Metric]]
    usual: ClassVar[tuple[str, ...]]

    # labels of a data set

    def infers(self, y: np.ndarray) -> bool:
        """Return whether stored labels can only be of this task, so that it need not be named."""
        return False

    def check(self, y: np.ndarray, n: int, where: str) -> np.ndarray:
        """Return the labels of n examples as batches have them; raises DataError.

        where: the beginning of messages.
        """
        raise NotImplementedError

    def output_names(
        self, names: Sequence[str] | None, parts: Sequence[np.ndarray], where: Sequence[str]
    ) -> tuple[str, ...]:
        """Return a name for each output of a model.

        names: those that the data give, or None.  parts: labels of the training split, and of the
        test split if there is one.  where: the beginnings of messages.
        Raises DataError for labels and names that do not fit.
        """
        C = parts[0].shape[1]
        if names is not None and len(names) != C:
            raise DataError(f"{where[0]}: {C} columns, but {len(names)} names; give one for each")
        for y, place in zip(parts, where, strict=True):
            if y.shape[1] != C:
                raise DataError(f"{place}: {y.shape[1]} columns, but {where[0]} has {C}")
        return tuple(map(str, range(C)) if names is None else names)

    def check_outputs(self, outputs: int, where: str) -> None:
        """Raise DataError if there are other outputs (classes) than the task has."""
        if self.n_outputs not in (0, outputs):
            raise DataError(
                f"{where}: the task is {self.name!r}, which has {self.n_outputs} classes, but "
                f"there are {outputs}; name another task, or give other classes"
            )

    def fit(self, train: np.ndarray, test: np.ndarray) -> tuple[Task, np.ndarray, np.ndarray]:
        """Return the task and the labels of both splits, prepared for training."""
        return self, train, test

    def prepare(self, y: np.ndarray) -> np.ndarray:
        """Return labels as `check` returns them, prepared for training as `fit` prepares them."""
        return y

    def adopt(
        self, y: np.ndarray, names: Sequence[str], other: Task, others: Sequence[str]
    ) -> np.ndarray:
        """Return labels of other data, prepared, as these data have them.

        names: of this task's outputs.  other, others: task of the other data, and names of its
        outputs.
        """
        return y

    def strata(self, y: np.ndarray) -> np.ndarray:
        """Return groups of labels for proportional sampling, [n], int64; all 0: none."""
        return np.zeros(len(y), np.int64)

    def counts(self, y: np.ndarray, outputs: int) -> np.ndarray:
        """Return how many examples each output concerns, [C], int64."""
        return np.full(outputs, len(y), np.int64)

    def describe(self, outputs: int) -> str:
        """Return what the labels are, in words."""
        return self.labels

    def oddities(self, y: np.ndarray, names: Sequence[str], complete: bool) -> list[str]:
        """Return what is odd about the training labels, one sentence each.

        complete: whether the data set is a known one, whose classes are as they should be.
        """
        return []

    # training and evaluation

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the default training loss of a batch, a scalar.

        output: [n, C], of a model, float32; in evaluation float64, as are labels y then.
        """
        raise NotImplementedError

    def predict(self, output: Tensor) -> Tensor:
        """Return what a model's output says in the units of the labels, for users: [n, C]."""
        return output

    def soft(self, output: Tensor) -> Tensor:
        """Return numbers of which the mean over several models can be taken: [n, C], float64.

        They are probabilities, or what `predict` returns.
        """
        return self.predict(output.double())

    def report(
        self, soft: np.ndarray, names: Sequence[str] | Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Return predictions as columns for users, [n] each.

        soft: [n, C], as `soft` returns it.  names: of the outputs; classes may be integers.
        """
        return {str(name): soft[:, c] for c, name in enumerate(names)}

    def answers(self, output: Tensor, y: Tensor) -> Answers:
        """Return what metrics are computed from. output: [n, C], float32."""
        raise NotImplementedError

    def score(
        self, batches: Iterable[tuple[Tensor, Tensor]], metrics: Sequence[str], keep: bool = False
    ) -> tuple[float, float, float, Answers | None]:
        """Return the main metric, the mean loss, and the answers of a model to some examples.

        Before the answers stands the class, if all predictions are one; nan otherwise.
        batches: outputs and labels, at least one pair.  metrics: names of what the run measures;
        where these need no answers, None is returned, unless keep.
        The loss is that of all examples together.
        """
        import torch

        outputs, labels = zip(*batches, strict=True)
        output, y = torch.cat(outputs).float(), torch.cat(labels)
        answers = self.answers(output, y)
        loss = float(self.loss(output.double(), y.double()))
        return self.compute(self.usual[:1], answers)[0], loss, float("nan"), answers

    def scored(self, answers: Answers) -> tuple[np.ndarray, np.ndarray]:
        """Return labels and scores as metrics of users' own get them (`hpcfed.tasks.custom`)."""
        raise NotImplementedError

    def decide(self, answers: Answers, held_out: Answers | None) -> Answers:
        """Return the answers to test examples with what metrics with a `threshold` need beside.

        held_out: the same model's answers to the client's validation examples; None: it has none.
        """
        return answers

    def charts(self, metrics: Sequence[str]) -> bool:
        """Return whether one of these metrics has a chart, also of the models received."""
        return False

    def chart(self, metrics: Sequence[str], answers: Sequence[Answers], outputs: int) -> Answers:
        """Return what charts of these answers show, by name, [clients, numbers].

        answers: of each client.  outputs: the number of outputs of models.
        """
        return {}

    # metrics

    def metric(self, name: str) -> Metric:
        """Return the metric of this name, one of the task's or a "module:function"."""
        if ":" in name:
            from hpcfed.tasks import custom  # which imports this module

            return custom.metric(name, self)
        return self.metrics[name]

    def needs(self, names: Iterable[str], what: str) -> bool:
        """Return whether one of these metrics needs "probabilities", or a "threshold"."""
        return any(getattr(self.metric(name), what) for name in names)

    @property
    def main(self) -> str:
        """Name of the main metric."""
        return self.usual[0]

    def compute(self, names: Sequence[str], answers: Answers) -> tuple[float, ...]:
        """Return these metrics of these answers; nan if undefined, or if scores are not finite."""
        finite = all(np.isfinite(a).all() for a in answers.values() if a.dtype.kind == "f")
        if not finite or not len(next(iter(answers.values()))):
            return tuple(float("nan") for _ in names)
        with warnings.catch_warnings():  # scikit-learn warns of undefined values, which are nan
            warnings.simplefilter("ignore")
            return tuple(float(self.metric(name).formula(answers)) for name in names)

    def fitting(self, outputs: int) -> list[str]:
        """Return the names of the metrics that models with these outputs have."""
        return [
            name
            for name, metric in self.metrics.items()
            if metric.outputs in (0, outputs) and outputs > metric.more_than
        ]

    def choose(self, names: Sequence[str], outputs: int, data: str) -> tuple[str, ...]:
        """Return the metrics that a run measures, the main one first.

        names: those that the job names; none: the usual ones.  data: name of the data.
        Raises ConfigError for a metric that does not fit the data.
        """
        fitting = self.fitting(outputs)
        for name in names:
            if name not in fitting and ":" not in name:
                raise ConfigError(
                    f"evaluate.metrics: {name} needs {needs(name)}, but {data} has "
                    f"{self.describe(outputs)} (task {self.name!r})\n"
                    f"  metrics of these data: {', '.join(fitting)}"
                )
        return tuple(dict.fromkeys([self.main, *(names or self.usual)]))

    # files

    def facts(self) -> dict[str, Any]:
        """Return the task in JSON types; `hpcfed.tasks.from_facts` is the inverse."""
        return {"name": self.name, **asdict(self)}


def needs(metric: str) -> str:
    """Return what a metric needs, in words."""
    from hpcfed.tasks import METRICS, TASKS

    if METRICS[metric].outputs == 2:
        return "two classes"
    if more := METRICS[metric].more_than:
        return f"more than {more} classes"
    tasks = [entry.load() for entry in TASKS.values()]
    return " or ".join(task.labels for task in tasks if metric in task.metrics)


def concat(parts: Sequence[Answers]) -> Answers:
    """Return several clients' answers, one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def fractional(y: np.ndarray) -> bool:
    """Return whether most of these numbers are not integers."""
    if y.dtype.kind != "f":
        return False
    finite = y[np.isfinite(y)]
    return bool(2 * np.count_nonzero(finite != np.round(finite)) > len(finite))


def numbers(y: np.ndarray, n: int, where: str, what: str) -> np.ndarray:
    """Return labels as [n, C], float64; [n] is one column. Raises DataError for anything else.

    what: description of the labels in messages.
    """
    columns = y[:, None] if y.ndim == 1 else y
    if columns.ndim != 2 or len(columns) != n or not columns.shape[1] or y.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: {y.dtype} {list(y.shape)} holds no {what} of {n} examples; store numbers, "
            f"[n] or [n, columns]"
        )
    return columns.astype(np.float64)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits, float64, without overflow."""
    small = np.exp(-np.abs(logits.astype(np.float64)))
    return np.where(logits >= 0, 1, small) / (1 + small)
