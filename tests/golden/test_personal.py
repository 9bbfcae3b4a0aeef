"""KT-pFL's coefficients by hand: mixtures, their gradients, the step, and the way back to the
simplex.
"""

import math

import pytest
import torch

from hpcfed.algorithms.public_data import ktpfl
from hpcfed.algorithms.public_data.mixtures import (
    among,
    of_predictions,
    of_weights,
    put,
    update_coefficients,
)
from hpcfed.core.params import Params
from hpcfed.core.simplex import nearest_on_simplex
from tests.golden.test_losses import model


def rows(*values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    "row, want",
    [
        ((0.2, 0.3, 0.5), (0.2, 0.3, 0.5)),  # is there already
        ((1.0, 1.0, 1.0), (1 / 3, 1 / 3, 1 / 3)),
        ((0.9, 0.5, 0.0), (0.7, 0.3, 0.0)),  # 0.2 too much, shared by the two that stay positive
        ((5.0, 0.0, 0.0), (1.0, 0.0, 0.0)),
        ((0.0, -1.0, 0.0), (0.5, 0.0, 0.5)),
    ],
)
def test_the_nearest_row_that_sums_to_one(row: tuple[float, ...], want: tuple[float, ...]):
    assert nearest_on_simplex(rows(row))[0].tolist() == pytest.approx(want, abs=1e-15)


def test_a_point_on_the_simplex_stays_and_equal_additions_change_nothing():
    v = torch.randn(1, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = nearest_on_simplex(v)
    assert p.sum().item() == pytest.approx(1) and p.min() >= 0 and (p == 0).any()
    assert torch.allclose(nearest_on_simplex(p), p, atol=1e-15)
    assert torch.allclose(nearest_on_simplex(p + 7), p, atol=1e-14)


def test_a_cohort_mixes_its_own_members_alone_and_the_other_coefficients_stay():
    coeff = rows((0.1, 0.3, 0.6), (0.2, 0.2, 0.6), (0.0, 1.0, 0.0))
    part, mass = among(coeff, [0, 2])
    assert part.tolist() == [
        [pytest.approx(1 / 7), pytest.approx(6 / 7)],
        [0.5, 0.5],
    ]  # row 2 gave both nothing
    new = put(coeff, [0, 2], rows((0.5, 0.5), (0.5, 0.5)), mass)
    want = rows((0.35, 0.3, 0.35), (0.2, 0.2, 0.6), (0.0, 1.0, 0.0))
    assert torch.allclose(new, want, rtol=0, atol=1e-15) and new[1:].equal(coeff[1:])


LOGITS = [[[2.0, 0.0], [0.0, 1.0]], [[0.0, 0.5], [3.0, 0.0]], [[1.0, 1.0], [0.0, 0.2]]]
SOFT = torch.tensor(LOGITS, dtype=torch.float64).softmax(
    2
)  # three clients, two examples, two classes
MIX = rows((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), (0.4, 0.4, 0.2))


@pytest.mark.parametrize("distance", ["kl", "mse"])
def test_the_gradient_for_the_rows_is_that_of_the_distance(distance: str):
    coeff = MIX.clone().requires_grad_()
    mixed = torch.tensordot(coeff, SOFT, 1)
    each = mixed * (mixed / SOFT).log() if distance == "kl" else (mixed - SOFT) ** 2
    (each.sum() / 2).backward()  # mean over the two examples
    assert torch.allclose(of_predictions(MIX, SOFT, distance), coeff.grad, rtol=1e-12, atol=0)


def test_the_gradient_for_models_needs_their_inner_products_alone():
    models, coeff = rows((1.0, 0.0), (1.0, 2.0), (0.0, -1.0)), MIX.clone().requires_grad_()
    ((models - coeff @ models) ** 2).sum().backward()
    assert torch.allclose(of_weights(MIX, models @ models.T), coeff.grad, rtol=1e-12, atol=1e-15)


def test_one_client_is_its_own_mixture_with_a_negligible_gradient():
    one, soft = rows((1.0,)), SOFT[:1]
    assert update_coefficients(one, of_predictions(one, soft), 0.1, 0.7).tolist() == [[1.0]]
    assert ktpfl.mixture_loss(soft[0], soft[0].log(), 1.0).item() == pytest.approx(0.0, abs=1e-15)


def test_a_step_by_hand():
    # 0.5 - 0.1 (1 + 2 * 0.5 * 0) = 0.4 and 0.5 - 0.1 * 0 = 0.5; 0.05 is missing from each
    assert update_coefficients(
        rows((0.5, 0.5), (0.5, 0.5)), rows((1.0, 0.0), (0.0, 0.0)), 0.1, 0.5
    ).tolist() == [[pytest.approx(0.45), pytest.approx(0.55)], [0.5, 0.5]]


def test_a_huge_penalty_makes_all_coefficients_equal_and_never_overshoots():
    new = update_coefficients(MIX, rows((9.0, 0.0, -9.0)) * torch.ones(3, 1), lr=0.1, rho=1e9)
    assert torch.allclose(new, torch.full((3, 3), 1 / 3, dtype=torch.float64), rtol=0, atol=1e-7)


def test_identical_clients_have_identical_rows():
    soft = SOFT[[0, 1, 1]]
    same = rows(*[(1 / 3, 1 / 3, 1 / 3)] * 3)
    new = update_coefficients(same, of_predictions(same, soft), 0.5, 0.1)
    assert new[1].equal(new[2]) and not new[0].equal(new[1])
    assert new.sum(1).tolist() == pytest.approx([1, 1, 1]) and (new >= 0).all()


@pytest.mark.parametrize("distance, want", [("kl", math.log(2)), ("mse", 0.5)])
def test_how_far_a_student_is_by_hand(distance: str, want: float):
    target, logits = torch.tensor([[1.0, 0.0]]), torch.tensor([[7.0, 7.0]])  # it says 0.5 and 0.5
    assert ktpfl.mixture_loss(target, logits, 10.0, distance).item() == pytest.approx(want)


def test_inner_products_run_over_all_tensors():
    weights = Params({name: p.detach() for name, p in model(1.0, 2.0, 3.0).named_parameters()})
    assert weights.dot(weights) == 14.0
