"""Distillation, prototypes and inner products by hand."""

import math

import pytest
import torch
from torch import nn, tensor

from hpcfed.training.losses import (
    cross_correlation,
    distil,
    inner_product,
    model_contrast,
    nearest,
    soften,
    to_prototypes,
    to_soft_targets,
)

NAN = float("nan")


def test_soft_predictions_are_shares_of_exponentials_at_a_temperature():
    logits = tensor([[0.0, math.log(3.0)]], requires_grad=True)
    assert soften(logits).tolist() == [[pytest.approx(0.25), pytest.approx(0.75)]]
    assert soften(2 * logits, tau=2.0).tolist() == [[pytest.approx(0.25), pytest.approx(0.75)]]
    assert not soften(logits).requires_grad


def test_distillation_is_the_divergence_summed_over_classes_and_averaged_over_examples():
    target, logits = tensor([[1.0, 0.0], [0.5, 0.5]]), tensor([[0.0, 0.0], [0.0, 0.0]])
    assert distil(target, logits).item() == pytest.approx(
        math.log(2) / 2
    )  # log 2 for the first, 0 for the second


def test_negative_probabilities_of_lossy_messages_count_as_zeros():
    logits = torch.tensor([[0.5, 1.0, -1.0]])
    lossy, zeros = torch.tensor([[0.6, -0.1, 0.5]]), torch.tensor([[0.6, 0.0, 0.5]])
    assert distil(lossy, logits).item() == distil(zeros, logits).item()


def test_distilling_towards_oneself_costs_nothing():
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert distil(soften(logits, 4.0), logits, tau=4.0).item() == pytest.approx(0.0, abs=1e-6)


def test_the_gradient_keeps_its_size_at_high_temperatures():
    target, logits = tensor([[4.0, 0.0]]), torch.zeros(1, 2, requires_grad=True)
    sizes = []
    for tau in (50.0, 100.0):
        (grad,) = torch.autograd.grad(distil(soften(target, tau), logits, tau), logits)
        sizes.append(grad.abs().max().item())
    assert sizes[1] == pytest.approx(
        sizes[0], rel=0.01
    )  # without the factor tau^2 it would be a quarter
    assert sizes[1] == pytest.approx(4.0 / 4, rel=0.01)  # tau^2 (p - q) -> (z_target - z) / (2 C)


def test_the_inner_product_has_the_direction_as_its_gradient():
    model = nn.Linear(2, 1)
    direction = {"weight": tensor([[3.0, -1.0]])}
    with torch.no_grad():
        model.weight.copy_(tensor([[2.0, 5.0]]))
    value = inner_product(model, direction)
    value.backward()
    assert (
        value.item() == 1.0
        and model.weight.grad.tolist() == [[3.0, -1.0]]
        and model.bias.grad is None
    )


def test_the_distance_to_prototypes_is_squared_and_averaged_and_leaves_out_classes_without_one():
    z, proto = (
        tensor([[1.0, 2.0], [0.0, 0.0]], requires_grad=True),
        tensor([[0.0, 0.0], [NAN, NAN]]),
    )
    value = to_prototypes(z, proto)
    value.backward()
    assert value.item() == 1.25  # (1 + 4 + 0) / 2 examples / 2 components
    assert z.grad.tolist() == [[0.5, 1.0], [0.0, 0.0]]
    assert to_prototypes(z, proto, "sum").item() == 2.5  # (1 + 4 + 0) / 2 examples


def test_the_distance_to_prototypes_is_the_authors_mean_squared_error_for_any_width():
    for d in (1, 4, 512):
        assert to_prototypes(torch.full((3, d), 5.0), torch.full((3, d), 2.0)).item() == 9.0


def test_the_nearest_prototype_scores_highest_and_a_missing_one_lowest():
    scores = nearest(tensor([[1.0, 0.0]]), tensor([[0.0, 0.0], [NAN, NAN], [3.0, 0.0]]))
    assert scores.tolist() == [[-1.0, -5.0, -4.0]]


def test_soft_targets_are_approached_and_a_row_without_one_counts_nothing():
    logits = torch.zeros(2, 2, requires_grad=True)
    target = tensor([[1.0, 0.0], [NAN, NAN]])
    kl, mse = (to_soft_targets(logits, target, distance) for distance in ("kl", "mse"))
    assert kl.item() == pytest.approx(math.log(2) / 2)  # over both examples
    assert mse.item() == pytest.approx((0.25 + 0.25) / 2)
    for value in (kl, mse):
        (grad,) = torch.autograd.grad(value, logits)
        assert grad[0, 0] < 0 < grad[0, 1] and grad[1].tolist() == [0, 0]


def test_a_cross_correlation_wants_one_on_the_diagonal_and_minus_one_elsewhere():
    z = tensor([[1.0, -1.0], [3.0, -3.0], [8.0, -8.0]])
    assert cross_correlation(z, z, lam=1.0).item() == pytest.approx(0.0, abs=1e-6)
    alike = z.abs()  # both columns the same: M is 1 everywhere
    assert cross_correlation(alike, alike, lam=0.5).item() == pytest.approx(0.5 * 2 * 4, abs=1e-5)
    assert cross_correlation(z, -z, lam=0.0).item() == pytest.approx(2 * 4, abs=1e-5)


def test_a_cross_correlation_moves_the_own_logits_alone_and_bears_constant_ones():
    g = torch.Generator().manual_seed(0)
    z, target = (torch.randn(6, 3, generator=g).requires_grad_() for _ in range(2))
    value = cross_correlation(z, target, lam=0.0051)
    slopes = torch.autograd.grad(value, (z, target), allow_unused=True)
    assert slopes[0].abs().sum() > 0 and slopes[1] is None
    flat = torch.zeros(6, 3, requires_grad=True)
    value = cross_correlation(flat, target, lam=0.5)
    assert value.item() == 3 + 0.5 * 6  # M is 0
    assert torch.autograd.grad(value, flat)[0].isfinite().all()
    with pytest.raises(ValueError, match="two examples at least, not 1"):
        cross_correlation(z[:1], target[:1], 0.0051)


def test_the_model_contrast_is_log_two_between_equals_and_falls_towards_the_near_one():
    z, other = tensor([[1.0, 0.0]], requires_grad=True), tensor([[-2.0, 0.0]])
    assert model_contrast(z, z.detach(), z.detach(), 0.5).item() == pytest.approx(math.log(2))
    want = math.log(1 + math.exp((-1 - 1) / 0.5))  # cosines 1 and -1
    assert model_contrast(z, z.detach(), other, 0.5).item() == pytest.approx(want)
