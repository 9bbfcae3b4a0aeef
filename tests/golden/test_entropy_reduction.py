"""DS-FL's entropy reduction by hand, and the factor that keeps distillation's gradient at its
size.
"""

import math

import pytest
import torch
from torch import Tensor, tensor

from hpcfed.training.losses import distil, soften

MODERATE = tensor([[0.3, *[0.7 / 9] * 9]], dtype=torch.float64)


def entropy(p: Tensor) -> float:
    """In nats."""
    return -sum(x * math.log(x) for x in p.flatten().tolist() if x)


def test_a_moderate_mean_is_sharpened():
    assert entropy(MODERATE) == pytest.approx(2.15, abs=0.005)
    by_hand = math.exp(3.0) / (math.exp(3.0) + 9 * math.exp(7 / 9))  # of the first class, at 0.1
    sharp = soften(MODERATE, 0.1)
    assert sharp[0, 0].item() == pytest.approx(by_hand) and entropy(sharp) == pytest.approx(
        1.78, abs=0.005
    )


def test_a_certain_mean_gets_softer_and_keeps_its_class():
    certain = torch.eye(10, dtype=torch.float64)[:1]
    soft = soften(certain, 0.1)
    assert 0 == entropy(certain) < entropy(soft) < 0.01
    assert soft.argmax() == 0 and soften(MODERATE, 0.1).argmax() == 0


def test_at_temperature_one_it_is_not_the_mean_itself():
    assert soften(MODERATE, 1.0)[0, 0] < 0.13 < 0.3
    assert torch.allclose(soften(MODERATE.log(), 1.0), MODERATE)  # that is what logits would give


@pytest.mark.parametrize("tau", [1.0, 5.0, 20.0])
def test_the_slope_of_distillation_is_tau_times_the_difference_of_the_soft_predictions(tau: float):
    teacher, student = tensor([[1.0, -0.5, 0.2]]).double(), tensor([[0.1, 0.4, -0.3]]).double()
    target, step = soften(teacher, tau), 1e-5
    for c in range(3):
        shift = step * torch.eye(3, dtype=torch.float64)[c]
        slope = (distil(target, student + shift, tau) - distil(target, student - shift, tau)) / (
            2 * step
        )
        # tau^2 of the loss, 1 / tau of the softmax
        by_hand = tau * (soften(student, tau) - target)[0, c]
        assert slope.item() == pytest.approx(by_hand.item(), abs=1e-7)


def test_for_high_temperatures_it_tends_to_matching_centred_logits():
    teacher, student = (
        tensor([[1.0, -0.5, 0.2]]).double(),
        tensor([[0.1, 0.4, -0.3]]).double().requires_grad_(),
    )
    distil(soften(teacher, 1e4), student, 1e4).backward()
    centred = (student - student.mean()) - (teacher - teacher.mean())
    assert torch.allclose(student.grad, centred.detach() / 3, atol=1e-4)  # Hinton et al., eq. 4
