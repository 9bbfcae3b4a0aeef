"""ARUBA's sums and rates, and the elastic penalty of adaptation, by hand."""

import torch
from torch import nn

from hpcfed.algorithms.global_model.aruba import ARUBA, State, rates_of
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


def test_the_elastic_penalty_weighs_each_square():
    """lam / 2 (3 * 1^2 + 0.5 * 2^2) = 4 / 2 * 5."""
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[1.0, 2.0]])
    anchor, weights = {"weight": torch.zeros(1, 2)}, {"weight": torch.tensor([[3.0, 0.5]])}
    assert elastic(model, anchor, weights, lam=4.0).item() == 10.0
