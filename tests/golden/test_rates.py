"""ARUBA's sums and rates, and the elastic penalty of adaptation, by hand."""

import numpy as np
import torch
from torch import nn

from hpcfed.algorithms.global_model.aruba import ARUBA, State, rates_of
from hpcfed.algorithms.personal.mocha import ascend, relate, rho_of
from hpcfed.core.params import Params
from hpcfed.training.losses import elastic


def at(value: float) -> Params:
    return Params(w=torch.tensor([value], dtype=torch.float64))


def test_arubas_rate_after_one_client_that_moved_by_two_with_squares_of_three():
    """b = 1 + 2^2 / 2 + 1 / 2 = 3.5, G = 1 + 3 + 1 / 2 = 4.5."""
    start = State(at(0.0), at(1.0), at(1.0), torch.tensor(0))
    got = ARUBA().follow(start, at(2.0), at(4.0), at(3.0), clients=1, lr=1.0)
    assert got.b["w"].item() == 3.5 and got.g["w"].item() == 4.5 and int(got.clients) == 1
    assert round(rates_of(got.b, got.g)["w"].item(), 4) == 0.8819


def test_arubas_counter_counts_clients_not_rounds():
    """The second and third client of a run add 1 / 3 + 1 / 4 times zeta^2, and eps^2."""
    start = State(at(0.0), at(1.0), at(1.0), torch.tensor(1))
    got = ARUBA(zeta=2.0).follow(start, at(0.0), at(0.0), at(0.0), clients=2, lr=0.5)
    assert abs(got.g["w"].item() - (1 + 4 * 7 / 12)) < 1e-12
    assert abs(got.b["w"].item() - (1 + 7 / 12)) < 1e-12


def test_arubas_single_rate_adds_the_constants_of_all_its_weights():
    """As the sums of three weights that never move: 3 (1 + 1 / 2)."""
    start = State(at(0.0), at(3.0), at(3.0), torch.tensor(0))
    got = ARUBA().follow(start, at(0.0), at(0.0), at(0.0), clients=1, lr=1.0, weights=3)
    assert got.b["w"].item() == got.g["w"].item() == 4.5


def test_the_elastic_penalty_weighs_each_square():
    """lam / 2 (3 * 1^2 + 0.5 * 2^2) = 4 / 2 * 5."""
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[1.0, 2.0]])
    anchor, weights = {"weight": torch.zeros(1, 2)}, {"weight": torch.tensor([[3.0, 0.5]])}
    assert elastic(model, anchor, weights, lam=4.0).item() == 10.0


def test_mochas_coordinate_by_hand():
    """n = x = y = lam = Sigma = rho = 1 leads to alpha = w = 1 at once, and nothing moves then."""
    w, db, one = np.zeros((1, 1)), np.zeros((1, 1)), np.ones(1)
    numbers = {"w": w, "db": db, "lam_n": 1.0, "sigma": 1.0, "rho": 1.0}
    alpha = ascend(np.zeros(1), one, 0, **numbers)
    assert alpha.tolist() == [1.0] and db.tolist() == [[1.0]]
    assert ascend(alpha, one, 0, **numbers).tolist() == [1.0] and db.tolist() == [[1.0]]
    assert ascend(np.zeros(1), 0 * one, 0, **numbers).tolist() == [0.0]


def test_relations_of_models_by_hand():
    """Lengths 3 and 4 at right angles: Sigma = diag(3, 4) / 7; no model at all: the identity."""
    got = relate(torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64))
    assert torch.allclose(got, torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64)) / 7)
    assert torch.equal(relate(torch.zeros(2, 3)), torch.eye(2) / 2)
    assert rho_of(torch.tensor([[2.0, -1.0], [-1.0, 4.0]])).item() == 1.5
