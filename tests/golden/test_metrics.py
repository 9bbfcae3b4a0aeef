"""Metrics on a handful of answers: by hand, as scikit-learn has them, and where they are not
defined.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from hpcfed.core.errors import ConfigError
from hpcfed.engine.run_metrics import pooled_accuracy
from hpcfed.tasks import Answers, described, make
from hpcfed.tasks.classification import Classification
from hpcfed.tasks.task import concat

CLASSES, SURVIVAL_TASK = Classification(), make("survival")
ALL = tuple(
    name for name in CLASSES.fitting(2) if not Classification.metrics[name].threshold
)  # of two classes


@pytest.fixture(scope="module")
def library():
    """The metrics of scikit-learn, whose import takes a second."""
    from sklearn import metrics

    return metrics


def compute(names: Sequence[str], answers: Answers) -> tuple[float, ...]:
    return (SURVIVAL_TASK if "risk" in answers else CLASSES).compute(names, answers)


def answers(y: list[int], predicted: list[int], margin: list[float] | None = None) -> Answers:
    columns = {"y": np.array(y, np.uint8), "predicted": np.array(predicted, np.uint8)}
    return columns if margin is None else columns | {"margin": np.array(margin, np.float32)}


def of(name: str, answers: Answers) -> float:
    return compute([name], answers)[0]


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


def test_c_index_is_the_area_under_the_curve_where_all_events_are_at_one_time(library):
    g = np.random.default_rng(0)
    event, risk = g.integers(0, 2, 40), g.integers(0, 9, 40).astype(np.float32)
    answers = {"time": np.where(event, 1.0, 2.0), "event": event, "risk": risk}
    assert of("c_index", answers) == pytest.approx(library.roc_auc_score(event, risk), abs=1e-15)


def test_a_tie_of_scores_counts_half_in_the_area_under_the_curve():
    assert of("roc_auc", answers([0, 1], [0, 0], [0, 0])) == 0.5


def test_metrics_are_those_of_scikit_learn_with_the_positive_class_second(library):
    g = np.random.default_rng(1)
    y, margin = g.integers(0, 2, 200), g.normal(size=200).astype(np.float32)
    scored = answers(y.tolist(), (margin > 0).tolist(), margin.tolist())
    probability = 1 / (1 + np.exp(-margin.astype(np.float64)))
    assert compute(ALL, scored) == (
        library.accuracy_score(y, margin > 0),
        library.f1_score(y, margin > 0),
        library.f1_score(y, margin > 0, average="macro"),
        library.balanced_accuracy_score(y, margin > 0),
        library.cohen_kappa_score(y, margin > 0),
        library.average_precision_score(y, probability),
        library.roc_auc_score(y, probability),
        pytest.approx(library.log_loss(y, probability), abs=1e-12),
        pytest.approx(library.brier_score_loss(y, probability), abs=1e-12),
        pytest.approx(ece_by_hand(y, np.stack([1 - probability, probability], 1)), abs=1e-12),
    )


def ece_by_hand(y: np.ndarray, probability: np.ndarray) -> float:
    """Guo et al., eq. 3, one bin after the other."""
    confidence, right = probability.max(1), probability.argmax(1) == y
    total = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


def test_metrics_of_several_classes_are_those_of_scikit_learn(library):
    g = np.random.default_rng(2)
    y, logits = g.integers(0, 7, 300), g.normal(size=(300, 7)).astype(np.float32)
    wide = logits.astype(np.float64)
    p = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
    scored = answers(y.tolist(), logits.argmax(1).tolist()) | {"logits": logits}
    onehot = np.eye(7)[y]
    wanted = {
        "macro_roc_auc": library.roc_auc_score(y, p, multi_class="ovr", average="macro"),
        "macro_pr_auc": library.average_precision_score(onehot, p, average="macro"),
        "top_3": library.top_k_accuracy_score(y, p, k=3, labels=range(7)),
        "top_5": library.top_k_accuracy_score(y, p, k=5, labels=range(7)),
        "log_loss": library.log_loss(y, p),
        "brier": np.square(p - onehot).sum(1).mean(),
        "ece": ece_by_hand(y, p),
    }
    assert dict(zip(wanted, compute([*wanted], scored), strict=True)) == pytest.approx(
        wanted, abs=1e-12
    )


def test_calibration_error_counts_the_gap_of_each_bin_by_its_examples():
    """Confidence 0.7 thrice, of which two are right, and 0.95 once, which is wrong."""
    p = np.array([0.7, 0.7, 0.3, 0.95])
    margin = np.log(p / (1 - p))
    scored = answers([1, 0, 0, 0], (p > 0.5).tolist(), margin.tolist())
    assert of("ece", scored) == pytest.approx((3 * abs(2 / 3 - 0.7) + 0.95) / 4, abs=1e-7)


def test_the_threshold_is_that_of_youden_on_validation_examples_alone():
    """Validation: negatives at -3, 0 and 1, positives at 0.5 and 2: from 0.5 on, halfway to 0."""
    held_out = answers([0, 0, 0, 1, 1], [0, 0, 1, 1, 1], [-3, 0, 1, 0.5, 2])
    tested = answers([0, 0, 1, 1, 1], [0, 0, 0, 0, 1], [-1, 0.3, 0.2, 0.24, 4])
    decided = CLASSES.decide(tested, held_out)
    assert decided["decided"].tolist() == [0, 1, 0, 0, 1]
    assert compute(["sensitivity", "specificity"], decided) == (1 / 3, 1 / 2)


def test_a_client_with_validation_examples_of_one_class_has_no_threshold_and_no_part_in_the_pool():
    tested = answers([0, 1], [0, 1], [-1, 1])
    one_class = CLASSES.decide(tested, answers([0, 0], [0, 0], [-1, 1]))
    assert np.isnan(compute(["sensitivity", "specificity"], one_class)).all()
    both = concat([one_class, CLASSES.decide(tested, answers([0, 1], [0, 1], [-2, 2]))])
    assert compute(["sensitivity", "specificity"], both) == (1.0, 1.0)
    assert np.isnan(compute(["sensitivity"], CLASSES.decide(tested, None))[0])


def of_labels(labels: np.ndarray, scores: np.ndarray) -> float:
    from sklearn.metrics import brier_score_loss

    return brier_score_loss(labels, scores)


def misses_labels(labels: np.ndarray, scores: np.ndarray) -> float:
    from sklearn.metrics import log_loss

    return log_loss(labels, scores, labels=[7])


def test_a_function_of_labels_and_scores_is_a_metric():
    here = f"{__name__}:of_labels"
    assert compute([here], TWO) == pytest.approx(compute(["brier"], TWO), abs=1e-12)
    assert make("regression").metric("sklearn.metrics:max_error").high is False
    assert not described(here).share and described(here).title == "of_labels"


def test_a_failing_function_is_one_message_with_its_line():
    with pytest.raises(ConfigError, match="line (.|\n)*misses_labels of labels .6.(.|\n)*nan wh"):
        compute([f"{__name__}:misses_labels"], TWO)


def forgets_to_return(labels: np.ndarray, scores: np.ndarray) -> None:
    from sklearn.metrics import brier_score_loss

    brier_score_loss(labels, scores)


def test_a_function_that_returns_nothing_is_refused():
    with pytest.raises(
        ConfigError, match=r"forgets_to_return returns None \(is a `return` missing"
    ):
        compute([f"{__name__}:forgets_to_return"], TWO)


def test_logits_are_kept_only_for_a_metric_that_needs_them():
    batch = [(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 4)]
    assert CLASSES.score(batch, ["accuracy"])[-1] is None
    assert "logits" not in CLASSES.score(batch, ["accuracy", "kappa"])[-1]
    assert CLASSES.score(batch, ["accuracy", "ece"])[-1]["logits"].shape == (9, 4)


@pytest.mark.parametrize(
    ("name", "scored"),
    [
        ("roc_auc", answers([1, 1], [1, 0], [1, -1])),  # no pair
        ("pr_auc", answers([0, 0], [1, 0], [1, -1])),  # no positive
        ("f1", answers([0, 0], [0, 0], [-1, -1])),  # neither a positive nor one predicted
        ("kappa", answers([1, 1], [1, 1], [1, 1])),  # chance alone is always right
        ("roc_auc", answers([0, 1], [0, 1], [-1, np.nan])),
        ("accuracy", answers([], [])),
        ("c_index", SURVIVAL | {"event": np.zeros(4)}),  # nothing was seen
    ],
)
def test_undefined_metrics_are_nan_without_a_warning(name, scored, recwarn):
    assert np.isnan(of(name, scored))
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


def test_methods_and_partitions_for_a_task_follow_from_its_classes():
    of_all = ["accuracy", "macro_f1", "balanced_accuracy", "kappa"]
    probable = ["log_loss", "brier", "ece"]
    assert CLASSES.fitting(3) == [*of_all, "macro_roc_auc", "macro_pr_auc", *probable]
    assert {*CLASSES.fitting(6)} - {*CLASSES.fitting(3)} == {"top_3", "top_5"}
    assert make("binary").fitting(2) == CLASSES.fitting(2)
    assert {*CLASSES.fitting(2)} == {*ALL, "sensitivity", "specificity"}
    assert SURVIVAL_TASK.fitting(1) == ["c_index"]
    for name, outputs in (("classification", 10), ("binary", 2), ("next", 80), ("survival", 1)):
        assert make(name).choose((), outputs, "these") == make(name).usual


def test_accuracy_is_measured_besides_the_named_metrics():
    assert CLASSES.choose(["kappa"], 10, "digits") == ("accuracy", "kappa")
    assert SURVIVAL_TASK.choose(["c_index"], 1, "these") == ("c_index",)


def test_a_metric_that_does_not_fit_the_data_is_refused_with_those_that_do():
    with pytest.raises(ConfigError, match="roc_auc needs two classes, but digits has 10 classes"):
        CLASSES.choose(["roc_auc"], 10, "digits")
    with pytest.raises(ConfigError, match="these data: accuracy, macro_f1, balanced_accuracy, kap"):
        CLASSES.choose(["c_index"], 10, "digits")


REGRESSION, MULTILABEL = make("regression"), make("multilabel")


def test_errors_of_numbers_are_means_over_examples_and_targets():
    """One target: errors 1, 0, -2 around a mean of 2, from which labels differ by 1, 1 and 0."""
    one = {"y": np.array([[1.0], [3], [2]]), "predicted": np.array([[2.0], [3], [0]])}
    assert REGRESSION.compute(["mse", "mae", "r2"], one) == (5 / 3, 1.0, 1 - 5 / 2)
    still = {"y": np.array([[4.0, 1], [4, 3]]), "predicted": np.array([[5.0, 1], [4, 3]])}
    assert REGRESSION.compute(["r2"], still) == (1.0,)  # of the target that varies
    assert np.isnan(REGRESSION.compute(["r2"], {name: v[:1] for name, v in one.items()})[0])


def test_equal_targets_do_not_vary_although_their_mean_is_rounded():
    level = np.full((3, 1), 0.1)  # their mean is 0.10000000000000002
    assert np.isnan(REGRESSION.compute(["r2"], {"y": level, "predicted": level + 0.5})[0])


def test_metrics_of_numbers_are_those_of_scikit_learn(library):
    g = np.random.default_rng(2)
    y, predicted = g.normal(5, 3, (200, 3)), g.normal(5, 3, (200, 3))
    assert REGRESSION.compute(("mse", "mae", "r2"), {"y": y, "predicted": predicted}) == (
        pytest.approx(library.mean_squared_error(y, predicted), rel=1e-12),
        pytest.approx(library.mean_absolute_error(y, predicted), rel=1e-12),
        pytest.approx(library.r2_score(y, predicted), rel=1e-12),
    )


def test_metrics_of_several_labels_are_those_of_scikit_learn(library):
    g = np.random.default_rng(3)
    y, score = g.integers(0, 2, (200, 4)).astype(np.uint8), g.normal(size=(200, 4))
    assert MULTILABEL.compute(tuple(MULTILABEL.metrics), {"y": y, "score": score}) == (
        pytest.approx(library.roc_auc_score(y, score, average="macro"), rel=1e-12),
        pytest.approx(library.average_precision_score(y, score, average="macro"), rel=1e-12),
        pytest.approx(library.f1_score(y, score > 0, average="macro"), rel=1e-12),
        pytest.approx(library.f1_score(y, score > 0, average="micro"), rel=1e-12),
    )


def test_labels_that_all_examples_have_or_none_are_left_out():
    """The first label: 1 of 2 pairs ranked right, F1 2 / 3; all have the second, none the third."""
    y = np.array([[1, 1, 0], [0, 1, 0], [1, 1, 0]], np.uint8)
    score = np.array([[-1.0, 2, -1], [0.5, -1, -2], [3, 4, -3]])
    names = ("macro_auc", "macro_f1", "micro_f1")
    auc, macro, micro = MULTILABEL.compute(names, {"y": y, "score": score})
    assert (auc, macro, micro) == (1 / 2, (2 / 4 + 4 / 5) / 2, 6 / 9)
    assert np.isnan(MULTILABEL.compute(["macro_auc"], {"y": y[:1], "score": score[:1]})[0])


def test_losses_of_tasks_are_those_of_their_formulas():
    logits, y = torch.tensor([[1.0, -1.0]]), torch.tensor([[1.0, 0.0]])
    want = np.log1p(np.exp(-1.0))  # -log sigmoid(1) for either label
    assert float(MULTILABEL.loss(logits, y)) == pytest.approx(want, rel=1e-6)
    assert float(REGRESSION.loss(logits, y)) == ((1 - 1) ** 2 + (-1 - 0) ** 2) / 2
    assert float(CLASSES.loss(logits, torch.tensor([0]))) == pytest.approx(np.log1p(np.exp(-2)))


def test_targets_are_standardised_by_the_training_part_and_scored_in_their_own_unit():
    train, test = np.array([[10.0, 7], [30, 7]]), np.array([[40.0, 8]])
    task, fitted, tested = REGRESSION.fit(train, test)
    assert (task.mean, task.std) == ((20, 7), (10, 1))
    assert fitted.tolist() == [[-1, 0], [1, 0]] and tested.tolist() == [[2, 1]]
    assert task.predict(torch.tensor([[1.0, 2.0]])).tolist() == [[30, 9]]
    output, labels = torch.tensor([[1.0, 1.0]]), torch.from_numpy(tested)
    metric, loss, _, answers = task.score([(output, labels)], ["mse"])
    assert (metric, loss) == (((40 - 30) ** 2 + 0) / 2, ((2 - 1) ** 2 + 0) / 2)
    assert answers["y"].tolist() == [[40, 8]] and answers["predicted"].tolist() == [[30, 8]]
