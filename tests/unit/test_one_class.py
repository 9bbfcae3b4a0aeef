"""Predictions of one class alone are told from metrics, as scikit-learn computes them."""

import numpy as np
import pytest

from hpcfed.results.one_class import METRICS, is_one_class, one_class
from hpcfed.storage.record import Record
from hpcfed.tasks.classification import Classification

NAN = np.nan
pytestmark = pytest.mark.quick
Y = np.array([0] * 18 + [1] * 2, np.uint8)


def told(predicted: np.ndarray, names: tuple[str, ...] = METRICS) -> bool:
    """What the metrics of these predictions of Y tell."""
    margin = predicted.astype(np.float32)
    answers = {"y": Y, "predicted": predicted, "margin": margin}
    found = dict(zip(names, Classification().compute(names, answers), strict=True))
    return bool(is_one_class({name: np.array([found.get(name, NAN)]) for name in METRICS}, 2)[0])


@pytest.mark.parametrize("names", [METRICS, METRICS[:3], ("accuracy", "f1", "balanced_accuracy")])
def test_predictions_of_one_class_are_told_and_no_others(names):
    assert told(np.zeros(20, np.uint8), names) and told(np.ones(20, np.uint8), names)
    g = np.random.default_rng(0)
    for share in (0.05, 0.1, 0.5, 0.9, 0.95):
        for _ in range(20):
            predicted = (g.random(20) < share).astype(np.uint8)
            assert told(predicted, names) == (len(set(predicted.tolist())) == 1)
    independent = np.array(([0] * 9 + [1] * 9) + [0, 1], np.uint8)  # kappa 0, by chance
    assert not told(independent, names)


def test_accuracy_alone_tells_nothing():
    assert not told(np.zeros(20, np.uint8), ("accuracy",))


def test_the_warning_names_the_class_or_the_number_of_clients():
    def record(f1: float, kappa: float, clients: list[float]) -> Record:
        header = {
            "metrics": list(METRICS[:3]),
            "classes": ["no", "yes"],
            "architectures": ["a"] * 2,
        }
        pooled = {"accuracy": 0.9, "f1": f1, "kappa": kappa}
        columns = {f"rounds/{name}_pooled": np.array([v]) for name, v in pooled.items()}
        own = {"accuracy": [0.9, 0.9], "f1": clients, "kappa": clients}
        columns |= {f"clients/{name}": np.array([v]) for name, v in own.items()}
        return Record(header, {}, columns, 1)

    whole = "all predictions are one class"
    assert one_class(record(0.0, 0.0, [0.0, 0.0])).startswith(f"{whole} (no); the accuracy, 0.9")
    assert one_class(record(1.8 / 1.9, 0.0, [0.0, 0.0])).startswith(f"{whole} (yes);")
    some = one_class(record(0.5, 0.4, [0.0, 0.3]))
    assert some.startswith("the models of 1 client predict one class")
    assert one_class(record(0.5, 0.4, [NAN, 0.3])) == ""
