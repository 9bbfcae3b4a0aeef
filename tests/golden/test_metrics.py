"""Metrics on a handful of answers: by hand, as scikit-learn has them, and where they are not
defined.
"""

import numpy as np
import pytest
from sklearn import metrics as library

from hpcfed.config.metrics import METRICS, TASKS, choose, fitting
from hpcfed.core.errors import ConfigError
from hpcfed.engine.run_metrics import pooled_accuracy
from hpcfed.training.metrics import Answers, compute, concat

ALL = tuple(name for name in METRICS if name != "c_index")


def answers(y: list[int], predicted: list[int], margin: list[float] | None = None) -> Answers:
    made = {"y": np.array(y, np.uint8), "predicted": np.array(predicted, np.uint8)}
    return made if margin is None else made | {"margin": np.array(margin, np.float32)}


def of(name: str, given: Answers) -> float:
    return compute([name], given)[0]


# by margin: + + - - + -, of which the first three are taken for positive
TWO = answers([0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0], [-2, 0.5, 1, 3, -1, -0.5])
THREE = answers([0, 0, 0, 1, 2], [0, 0, 1, 1, 0])
SURVIVAL = {
    "time": np.array([1.0, 2, 2, 3]),
    "event": np.array([1, 0, 1, 1]),
    "risk": np.array([4, 3, 3, 1], np.float32),
}


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("accuracy", 4 / 6),
        ("f1", 2 * 2 / (2 * 2 + 1 + 1)),  # 2 right, 1 wrongly taken for it, 1 missed
        ("macro_f1", (2 / 3 + 2 / 3) / 2),
        ("balanced_accuracy", (2 / 3 + 2 / 3) / 2),
        ("kappa", (4 / 6 - 1 / 2) / (1 - 1 / 2)),
        ("pr_auc", (1 / 1 + 2 / 2 + 3 / 5) / 3),  # precision at each positive
        ("roc_auc", (3 + 3 + 1) / 9),  # negatives below each positive
    ],
)
def test_of_two_classes(name: str, want: float):
    assert of(name, TWO) == pytest.approx(want, abs=1e-15)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("accuracy", 3 / 5),
        ("macro_f1", (4 / 6 + 2 / 3 + 0) / 3),
        ("balanced_accuracy", (2 / 3 + 1 + 0) / 3),
        ("kappa", (15 - 11) / (25 - 11)),  # by chance: (3 * 3 + 1 * 2 + 1 * 0) / 25
    ],
)
def test_of_three_classes(name: str, want: float):
    assert of(name, THREE) == pytest.approx(want, abs=1e-15)


def test_c_index_counts_comparable_pairs_and_a_tie_of_risks_as_half():
    """Of the first event three pairs, all right; of the third example, seen at 2, one with the last
    (right) and one with the second, censored at 2 (equal risks); of the others none.
    """
    assert of("c_index", SURVIVAL) == (3 + 1 + 0.5) / 5


def test_c_index_is_the_area_under_the_curve_where_all_events_are_at_one_time():
    g = np.random.default_rng(0)
    event, risk = g.integers(0, 2, 40), g.integers(0, 9, 40).astype(np.float32)
    given = {"time": np.where(event, 1.0, 2.0), "event": event, "risk": risk}
    assert of("c_index", given) == pytest.approx(library.roc_auc_score(event, risk), abs=1e-15)


def test_a_tie_of_scores_counts_half_in_the_area_under_the_curve():
    assert of("roc_auc", answers([0, 1], [0, 0], [0, 0])) == 0.5


def test_metrics_are_those_of_scikit_learn_with_the_positive_class_second():
    g = np.random.default_rng(1)
    y, margin = g.integers(0, 2, 200), g.normal(size=200).astype(np.float32)
    given = answers(y.tolist(), (margin > 0).tolist(), margin.tolist())
    probability = 1 / (1 + np.exp(-margin.astype(np.float64)))
    assert compute(ALL, given) == (
        library.accuracy_score(y, margin > 0),
        library.f1_score(y, margin > 0),
        library.f1_score(y, margin > 0, average="macro"),
        library.balanced_accuracy_score(y, margin > 0),
        library.cohen_kappa_score(y, margin > 0),
        library.average_precision_score(y, probability),
        library.roc_auc_score(y, probability),
    )


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("roc_auc", answers([1, 1], [1, 0], [1, -1])),  # no pair
        ("pr_auc", answers([0, 0], [1, 0], [1, -1])),  # no positive
        ("f1", answers([0, 0], [0, 0], [-1, -1])),  # neither a positive nor one taken for it
        ("kappa", answers([1, 1], [1, 1], [1, 1])),  # chance alone is always right
        ("roc_auc", answers([0, 1], [0, 1], [-1, np.nan])),
        ("accuracy", answers([], [])),
        ("c_index", SURVIVAL | {"event": np.zeros(4)}),  # nothing was seen
    ],
)
def test_what_is_not_defined_is_nan_without_a_warning(name, given, recwarn):
    assert np.isnan(of(name, given))
    assert not recwarn.list


def test_pooled_metrics_are_those_of_all_examples_not_means_over_clients():
    """One client knows all negatives, the other all positives: neither has a ROC-AUC."""
    parts = [answers([0, 0], [0, 0], [-1, 0]), answers([1, 1], [0, 1], [-0.5, 2])]
    assert [np.isnan(of("roc_auc", part)) for part in parts] == [True, True]
    assert of("roc_auc", concat(parts)) == 3 / 4


def test_pooled_accuracy_weights_clients_by_their_test_examples():
    accuracy = np.array([1 / 3, np.nan, 1.0])
    assert pooled_accuracy(accuracy, np.array([3, 5, 1])) == 2 / 4
    assert np.isnan(pooled_accuracy(accuracy[1:2], np.array([5])))


def test_what_fits_a_task_follows_from_its_classes():
    assert fitting("classes", 3) == ["accuracy", "macro_f1", "balanced_accuracy", "kappa"]
    assert fitting("binary", 2) == fitting("classes", 2) == list(ALL)
    assert fitting("survival", 1) == ["c_index"]
    for task, classes in (("classes", 10), ("binary", 2), ("next", 80), ("survival", 1)):
        assert choose((), task, classes, "these") == TASKS[task]


def test_accuracy_is_measured_beside_what_is_named():
    assert choose(["kappa"], "classes", 10, "digits") == ("accuracy", "kappa")
    assert choose(["c_index"], "survival", 1, "these") == ("c_index",)


def test_a_metric_that_does_not_fit_the_data_is_refused_with_those_that_do():
    with pytest.raises(ConfigError, match="roc_auc needs two classes, but digits has 10 classes"):
        choose(["roc_auc"], "classes", 10, "digits")
    with pytest.raises(ConfigError, match="these data: accuracy, macro_f1, balanced_accuracy, kap"):
        choose(["c_index"], "classes", 10, "digits")
