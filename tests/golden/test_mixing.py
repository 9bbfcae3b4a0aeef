"""Weights with which clients mix models, by hand: FedALA's of single values, FedAMP's attention,
FedFomo's gains, FedPAC's weights of heads.
"""

import math

import numpy as np
import pytest
import torch

from hpcfed.algorithms.decentralised.mixing import mix
from hpcfed.algorithms.personal import fedala
from hpcfed.algorithms.personal.fedala import FedALA
from hpcfed.algorithms.personal.fedamp import FedAMP, cosine, square_distance
from hpcfed.algorithms.personal.fedfomo import FedFomo, length, weights_of
from hpcfed.algorithms.personal.fedpac import weights_of_heads
from hpcfed.core.params import Params


@pytest.mark.parametrize(
    "eta, weight, start",
    [(1.0, 0.0, 0.0), (0.25, 0.5, 1.0)],  # the latter is the optimum
)
def test_fedalas_step_down_half_the_squared_distance_to_one(
    eta: float, weight: float, start: float
):
    v, w, W = (Params(x=torch.tensor([value])) for value in (0.0, 2.0, 1.0))
    slope = fedala.mix(v, w, W).map(lambda x: x - 1)  # of (x - 1)^2 / 2
    W = fedala.descend(W, slope, w - v, eta)
    assert W["x"].item() == weight
    assert fedala.mix(v, w, W)["x"].item() == start


def test_a_mixture_is_exactly_each_of_its_ends():
    v, w = (Params(x=torch.randn(99, generator=torch.manual_seed(s))) for s in (0, 1))
    for weight, end in ((0.0, v), (1.0, w)):
        mixture = fedala.mix(v, w, v.map(lambda x, weight=weight: torch.full_like(x, weight)))
        assert mixture["x"].equal(end["x"])


def test_fedalas_first_learning_ends_when_ten_losses_deviate_little_or_at_its_bound():
    method = FedALA(first_epochs=30, threshold=0.1)
    assert not method.has_settled([1.0] * 10)
    assert method.has_settled([9.0, *[1.0] * 10])
    assert not method.has_settled([1.0, *[1.0, 1.3] * 5])
    assert method.has_settled([1.0, 1.3] * 15)


def test_fedalas_last_layers_are_their_weights_and_biases():
    names = ["body.1.weight", "body.1.bias", "body.3.weight", "head.weight", "head.bias"]
    assert fedala.last_layers(names, 1) == set(names[3:])
    assert fedala.last_layers(names, 2) == set(names[2:])
    assert fedala.last_layers(names, 9) == set(names)


def mixtures(rows: dict[int, np.ndarray], *values: float) -> list[float]:
    models = ((j, Params(w=torch.tensor([v]))) for j, v in enumerate(values))
    return [mixture["w"].item() for mixture in mix(rows, models).values()]


def test_fedamps_attention_of_two_models_at_distance_one():
    method = FedAMP(alpha=0.5, sigma=1.0)
    squares = np.array([[0.0, 1.0], [1.0, 0.0]])
    rows = {i: method.attend(squares[i], i) for i in (0, 1)}
    assert rows[0][1] == pytest.approx(0.183940, abs=1e-6) == 0.5 * math.exp(-1)
    assert mixtures(rows, 0.0, 1.0) == pytest.approx([0.183940, 0.816060], abs=1e-6)


@pytest.mark.parametrize("attention", ["distance", "cosine"])
@pytest.mark.parametrize("values", [(0.0, 4.0, math.nan), (0.9, 1.0, -0.3), (math.nan, 0.5, 0.0)])
def test_attention_is_a_convex_combination_of_the_models_that_the_server_has(attention, values):
    row = FedAMP(attention=attention, alpha=5.0, sigma=1.0).attend(np.array(values), 1)
    assert row.min() >= 0 and row.sum() == pytest.approx(1)
    assert (row[np.isnan(values)] == 0).all()


def test_fedamp_with_a_large_sigma_gives_all_the_mean_and_a_client_alone_its_own_model():
    method = FedAMP(alpha=1e9 / 4, sigma=1e9)
    row = method.attend(np.array([0.0, 3.0, 5.0, 1.0]), 2)
    assert row == pytest.approx(np.full(4, 0.25), abs=1e-8)
    for attention in ("distance", "cosine"):
        assert FedAMP(attention=attention).attend(np.zeros(1), 0).tolist() == [1.0]


def test_heurfedamps_attention_is_a_softmax_of_cosines():
    method = FedAMP(attention="cosine", sigma=2.0, self_weight=0.4)
    row = method.attend(np.array([0.5, 1.0, 0.0]), 1)
    rest = 0.6 / (math.e + 1)
    assert row == pytest.approx(np.array([rest * math.e, 0.4, rest]))


def test_distances_and_cosines_are_over_all_tensors():
    a, b = (Params(u=torch.tensor([v]), v=torch.tensor([[0.0, 2.0]])) for v in (1.0, 0.0))
    assert square_distance(a, b) == 1.0
    assert cosine(a, b) == pytest.approx(4 / (math.sqrt(5) * 2))
    assert cosine(a * 0, b) == 0.0


@pytest.mark.parametrize(
    "losses, lengths, want",
    [
        ((0.5, 1.2), (2.0, 1.0), (1.0, 0.0)),  # gains of 0.25 and of less than 0
        ((0.5, 0.25), (2.0, 1.0), (0.25, 0.75)),
        ((1.0, 2.0), (1.0, 1.0), (0.0, 0.0)),
        ((1.0, 1.0), (0.0, 0.0), (0.0, 0.0)),  # the model itself
    ],
)
def test_fedfomos_weights_are_lower_losses_by_distance(losses, lengths, want):
    assert weights_of(1.0, losses, lengths) == pytest.approx(want)


def test_the_norms_of_a_difference():
    change = Params(u=torch.tensor([3.0]), v=torch.tensor([[-4.0, 0.0]]))
    assert (length(change, "l2"), length(change, "l1")) == (5.0, 7.0)


def test_fedfomo_takes_the_models_of_most_affinity_or_any():
    fed = type("Seeded", (), {"seed": 3})
    affinity = np.array([0.0, 9.0, 5.0, 7.0, 1.0])

    def choices(epsilon: float, decay: float) -> set[tuple[int, ...]]:
        """Of client 0 in 50 rounds, if the server has no model of client 1."""
        method = FedFomo(models=2, epsilon=epsilon, epsilon_decay=decay)
        return {tuple(method.choose(fed, affinity, [0, 2, 3, 4], 0, t)) for t in range(1, 50)}

    assert choices(0.0, 0.05) == choices(0.5, 0.5) == {(2, 3)}
    assert choices(1.0, 0.0) == {(2, 3), (2, 4), (3, 4)}
    assert FedFomo(models=9).choose(fed, affinity, [0, 2, 4], 2, 0) == [0, 4]


@pytest.mark.parametrize(
    "h, v, want",
    [
        ([[0.0, 0.0], [1.0, 1.0]], [1.0, 1.0], [0.75, 0.25]),  # (v_2 + D) / (v_1 + v_2 + D), D = 2
        ([[3.0, 1.0], [3.0, 1.0]], [1.0, 1.0], [0.5, 0.5]),  # D = 0
        ([[3.0, 1.0]] * 3, [1.0, 2.0, 2.0], [0.5, 0.25, 0.25]),
        ([[0.0], [1.0], [9.0]], [0.0, 1.0, 1.0], [1.0, 0.0, 0.0]),  # no variance of its own
    ],
)
def test_fedpacs_weights_of_heads(h, v, want):
    assert weights_of_heads(np.array(h), np.array(v), 0) == pytest.approx(np.array(want))


def test_no_other_weights_of_heads_are_better():
    g = np.random.default_rng(0)
    h, v = g.normal(size=(9, 20)), g.uniform(1, 50, 9)

    def value(a: np.ndarray, i: int) -> float:
        return float((a**2 * v).sum() + ((h[i] - a @ h) ** 2).sum())

    for i in range(9):
        a = weights_of_heads(h, v, i)
        assert a.min() >= 0 and a.sum() == pytest.approx(1) and (a > 0).sum() > 2
        others = (0.99 * a + 0.01 * g.dirichlet(np.ones(9)) for _ in range(200))
        assert value(a, i) < min(value(other, i) for other in others)
