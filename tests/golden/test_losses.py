"""The formulas of training/losses.py against values computed by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hpcfed import tasks
from hpcfed.models.precision import autocast
from hpcfed.tasks.survival import cox
from hpcfed.training.losses import (
    contrastive_cross_entropy,
    distance,
    gaussian_divergence,
    half_mean_squares,
    proximal,
    supcon,
)


def model(*values: float) -> nn.Module:
    """A module with one parameter `w` of these values."""
    module = nn.Module()
    module.w = nn.Parameter(torch.tensor(values, dtype=torch.float64))
    return module


def anchor(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float64)}


FOUR = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)


def test_supcon_of_four_samples_by_hand():
    # each anchor: one positive at similarity 1, two negatives at similarity 0: -log(e / (e + 1 +
    # 1)) at tau 1
    want = math.log((math.e + 2) / math.e)
    assert supcon(FOUR, torch.tensor([0, 0, 1, 1]), tau=1.0).item() == pytest.approx(
        want, rel=1e-12
    )


def test_supcon_averages_the_positives_of_an_anchor_outside_the_logarithm():
    y = torch.tensor([0, 0, 0, 1])
    # anchors 0, 1: positives at 1 and 0, negative at 0; anchor 2: two positives at 0, negative at
    # 1; anchor 3: none
    expected = 0.5 * (math.log(math.e + 2) - 1) + 0.5 * math.log(math.e + 2)
    third = math.log(2 + math.e)
    assert supcon(FOUR, y, tau=1.0).item() == pytest.approx(
        (2 * expected + third + 0) / 4, rel=1e-12
    )


def test_an_anchor_without_positives_contributes_nothing():
    assert supcon(FOUR, torch.tensor([0, 1, 2, 3]), tau=0.07).item() == 0.0


def test_supcon_does_not_depend_on_the_order_of_the_batch():
    z, y = (
        torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
        torch.arange(12) % 3,
    )
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    assert supcon(z, y).item() == pytest.approx(supcon(z[order], y[order]).item(), rel=1e-12)


@pytest.mark.parametrize("normalise", [True, False])
def test_supcon_has_the_bits_of_float32_if_products_are_bfloat16(normalise: bool):
    z, y = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    want = supcon(z, y, normalise=normalise)
    with autocast("bf16", z.device):
        assert torch.equal(supcon(z, y, normalise=normalise), want)
        half = supcon(z.bfloat16(), y, normalise=normalise)
    assert torch.equal(half, supcon(z.bfloat16().float(), y, normalise=normalise))


def test_supcon_normalises_lengths_away():
    assert supcon(FOUR * 7, torch.tensor([0, 0, 1, 1])) == supcon(FOUR, torch.tensor([0, 0, 1, 1]))


def test_the_authors_scale_multiplies_supcon_by_tau_over_base():
    y = torch.tensor([0, 0, 1, 1])
    plain = supcon(FOUR, y, tau=100.0, normalise=False)
    assert supcon(FOUR, y, tau=100.0, base=0.07, normalise=False).item() == pytest.approx(
        plain.item() / 0.0007
    )


def test_the_gradient_of_supcon_is_right():
    z = torch.randn(
        6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    ).requires_grad_()
    y = torch.tensor([0, 1, 0, 1, 2, 0])
    assert torch.autograd.gradcheck(lambda z: supcon(z, y, tau=0.5), z)


def test_contrastive_cross_entropy_takes_the_classes_from_the_first_view_only():
    net = nn.Module()
    net.body, net.head = nn.Identity(), nn.Linear(2, 2, bias=False).double()
    net.head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    first, swapped = FOUR[[0, 2]], FOUR[[2, 0]]  # the second view's classes would be wrong
    y = torch.tensor([0, 1])
    cross = math.log((math.e + 1) / math.e)
    want = cross + supcon(torch.cat([first, swapped]), torch.tensor([0, 1, 0, 1]), tau=1.0).item()
    assert contrastive_cross_entropy(net, [first, swapped], y, tau=1.0).item() == pytest.approx(
        want, rel=1e-12
    )


def test_proximal_is_half_mu_times_squared_distance():
    assert proximal(model(3.0), anchor(1.0), mu=0.5).item() == 1.0  # 0.5 / 2 * (3 - 1) ** 2


def test_the_gradient_of_proximal_is_mu_times_the_difference():
    net = model(3.0, -1.0)
    proximal(net, anchor(1.0, 1.0), mu=0.5).backward()
    assert net.w.grad.tolist() == [1.0, -1.0]


def test_distance_is_the_euclidean_length_over_all_tensors_together():
    assert distance(model(3.0, 4.0), anchor(0.0, 0.0)).item() == 5.0


def test_the_gradient_of_distance_has_length_one_and_points_along_the_difference():
    net = model(3.0, 4.0)
    distance(net, anchor(0.0, 0.0)).backward()
    assert net.w.grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-12)


def test_the_gradient_of_distance_at_distance_zero_is_zero():
    net = model(3.0, 4.0)
    distance(net, anchor(3.0, 4.0)).backward()
    assert net.w.grad.tolist() == [0.0, 0.0]


def test_the_authors_proximal_term_is_half_the_mean_square_of_each_tensor():
    assert (
        half_mean_squares(model(3.0, 1.0), anchor(1.0, 1.0)).item() == 1.0
    )  # ((3-1)**2 + 0) / 2 values / 2


def test_tensors_that_the_anchor_does_not_name_do_not_count():
    net = model(3.0)
    net.v = nn.Parameter(torch.tensor([9.0], dtype=torch.float64))
    assert distance(net, anchor(1.0)).item() == 2.0


def test_cox_loss_is_the_mean_over_examples_of_log_risk_sets_minus_log_risks_of_events():
    risk = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64).log()
    y = torch.tensor([[3.0, 1], [1.0, 1], [2.0, 1]])
    want = (math.log(3 / 3) + math.log(6 / 1) + math.log(5 / 2)) / 3
    assert cox(risk, y).item() == pytest.approx(want, abs=1e-15)


def test_those_with_the_time_of_an_event_are_at_risk_and_censored_ones_have_no_term():
    risk = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).log()
    y = torch.tensor([[1.0, 1], [1.0, 0], [2.0, 1]])
    assert cox(risk, y).item() == pytest.approx(math.log(6 / 1) / 3, abs=1e-15)
    assert cox(risk.flip(0), y.flip(0)).item() == pytest.approx(math.log(6 / 1) / 3, abs=1e-15)


def test_cox_loss_without_events_is_0_and_large_risks_do_not_overflow():
    assert cox(torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 0], [2.0, 0]])).item() == 0
    assert cox(torch.tensor([2000.0, 0.0]), torch.tensor([[1.0, 1], [2.0, 1]])).item() == 0


def test_the_loss_follows_from_the_task():
    logits, y = torch.tensor([[0.5, 0.25], [2.0, -1.0]]), torch.tensor([0, 1])
    assert torch.equal(tasks.make("classification").loss(logits, y), F.cross_entropy(logits, y))
    times = torch.tensor([[1.0, 1], [2.0, 0]])
    assert torch.equal(tasks.make("survival").loss(logits[:, :1], times), cox(logits[:, 0], times))


def test_the_divergence_of_two_gaussians_is_torchs_and_0_of_one_with_itself():
    m1, s1, m2, s2 = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)).double() + 0.1
    kinds = torch.distributions
    want = kinds.kl_divergence(kinds.Normal(m1, s1), kinds.Normal(m2, s2))
    assert torch.allclose(gaussian_divergence(m1, s1, m2, s2), want, atol=1e-12)
    assert gaussian_divergence(m1, s1, m1, s1).abs().max() < 1e-12
    by_hand = gaussian_divergence(*torch.tensor([[1.0], [1.0], [3.0], [2.0]]))
    assert by_hand.item() == pytest.approx(math.log(2) + 5 / 8 - 0.5)
