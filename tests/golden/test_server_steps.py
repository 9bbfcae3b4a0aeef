"""Steps of the server by hand: FedOpt's three rules, and FedRS's factors, which clients take."""

import math

import numpy as np
import pytest
import torch

from hpcfed.algorithms.global_model.fedopt import FedOpt, State, direction, second_moment
from hpcfed.algorithms.global_model.fedrs import scale
from hpcfed.core.params import Params


def at(value: float) -> Params:
    return Params(w=torch.tensor([value], dtype=torch.float64))


def step(method: FedOpt, mean: float, x: float = 1.0, m: float = 0.0, v: float = 0.0) -> State:
    old = State(at(x), at(m), at(v), torch.tensor(0))
    return method.server(None, old, at(mean), [])


@pytest.mark.parametrize(
    "rule, want",
    [
        ("adagrad", 4.0 + 9.0),
        ("adam", 0.75 * 4.0 + 0.25 * 9.0),
        ("yogi", 4.0 + 0.25 * 9.0),  # v < change^2: it grows by a part of the square
    ],
)
def test_the_second_moment_after_a_change_of_three(rule: str, want: float):
    four, three = torch.tensor(4.0), torch.tensor(3.0)
    assert second_moment(four, three, rule, b2=0.75).item() == want


def test_yogis_second_moment_falls_if_the_square_is_smaller():
    assert second_moment(torch.tensor(4.0), torch.tensor(1.0), "yogi", b2=0.75).item() == 3.75


def test_a_step_of_adam_by_hand():
    """Change 2 from m = 1, v = 4: m = 1.5, v = 4, and 1 + 0.5 * 1.5 / (2 + 1) = 1.25."""
    new = step(FedOpt(eta=0.5, b1=0.5, b2=0.5, tau=1.0), mean=3.0, m=1.0, v=4.0)
    assert (new.m["w"].item(), new.v["w"].item(), new.x["w"].item()) == (1.5, 4.0, 1.25)
    assert new.steps.item() == 1


@pytest.mark.parametrize("rule, length", [("adam", 10.0), ("yogi", 10.0), ("adagrad", 1.0)])
@pytest.mark.parametrize("mean", [1.7, -40.0])
def test_the_first_step_without_tau_has_a_length_that_no_change_alters(rule, length, mean):
    """eta / sqrt(1 - b2), or eta."""
    method = FedOpt(optimiser=rule, eta=1.0, b1=0, b2=0.99, tau=0, start="zero")
    assert abs(step(method, mean).x["w"].item() - 1.0) == pytest.approx(length, rel=1e-12)


@pytest.mark.parametrize("rule", ["adam", "yogi"])
def test_the_first_step_with_bias_correction_has_length_eta(rule: str):
    method = FedOpt(optimiser=rule, eta=0.3, tau=0, start="zero", bias_correction=True)
    assert step(method, 5.0).x["w"].item() == pytest.approx(1.3, rel=1e-12)


def test_without_changes_nothing_is_sent():
    assert direction(torch.zeros(2), torch.zeros(2), 0.0).tolist() == [0, 0]
    assert step(FedOpt(tau=0, start="zero"), 1.0).x["w"].item() == 1.0


def test_fedrs_scales_logits_of_missing_classes_or_all_by_their_number():
    counts = np.array([0, 2, 8])
    assert scale(counts, 0.25, "binary").tolist() == [0.25, 1, 1]
    assert scale(counts, 0.5, "graded").tolist() == [0.5, 0.625, 1]
    assert math.isfinite(scale(np.zeros(2, dtype=int), 0.5, "graded").sum())


@pytest.mark.parametrize("field", ["b1", "b2"])
def test_a_decay_of_1_is_refused_because_no_gradient_would_count(field: str):
    with pytest.raises(ValueError, match="less than 1"):
        FedOpt(**{field: 1.0})
