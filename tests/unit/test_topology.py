"""Graphs and their weights: who is whose neighbour, and what averaging leaves as it is."""

from itertools import product

import numpy as np
import pytest
import torch

from hpcfed.algorithms.decentralised.mixing import add_step, ccs, metropolis, mix, mixing, uniform
from hpcfed.algorithms.decentralised.topology import among, graph, is_connected
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.engine import describe
from tests.contract.toy import differences, job, start
from tests.rows import for_each

KINDS = ("ring", "complete", "star", "torus", "clique-ring", "erdos-renyi", "exponential")
each_kind = pytest.mark.parametrize("kind", KINDS)


@for_each(list(product(KINDS, [1, 2, 3, 7, 12, 16])))
def test_a_graph_is_symmetric_connected_and_without_loops(row: tuple[str, int]):
    kind, n = row
    links = graph(kind, n, 0, 3, 0.7)
    assert (
        links.shape == (n, n)
        and (links == links.T).all()
        and not links.diagonal().any()
        and is_connected(links)
    )


@pytest.mark.parametrize(
    "kind, n, degrees",
    [
        ("ring", 5, [2] * 5),
        ("ring", 2, [1, 1]),
        ("ring", 1, [0]),
        ("complete", 4, [3] * 4),
        ("star", 4, [3, 1, 1, 1]),
        ("torus", 12, [4] * 12),
        ("torus", 6, [3] * 6),
        ("torus", 5, [2] * 5),
        ("exponential", 8, [5] * 8),  # 1, 2 and 4 both ways; 4 is the same both ways
        ("clique-ring", 9, [3, 2, 3] * 3),
    ],
)
def test_degrees_by_hand(kind: str, n: int, degrees: list[int]):
    assert graph(kind, n).sum(1).tolist() == degrees


def test_a_random_graph_has_its_density_and_its_seed():
    links = graph("erdos-renyi", 60, 1, 3, 0.4)
    assert abs(links.sum() / (60 * 59) - 0.4) < 0.05
    assert (links != graph("erdos-renyi", 60, 2, 3, 0.4)).any()


def test_a_density_with_which_no_graph_is_connected_is_refused():
    with pytest.raises(
        ConfigError, match=r"algorithm.density = 0.01: none of 1000 random graphs of 20 clients"
    ):
        graph("erdos-renyi", 20, 0, 3, 0.01)


@pytest.mark.parametrize("weights", [metropolis, ccs])
@each_kind
def test_weights_are_symmetric_doubly_stochastic_and_mix(kind: str, weights):
    W = weights(graph(kind, 12, 3, 3, 0.4))
    assert np.allclose(W, W.T, atol=1e-15) and (W >= 0).all()
    assert np.allclose(W.sum(0), 1, atol=1e-12) and np.allclose(W.sum(1), 1, atol=1e-12)
    second = np.sort(abs(np.linalg.eigvalsh(W)))[-2]
    assert second < 1 - 1e-3  # so disagreement shrinks by this factor in each averaging


def test_own_weights_are_not_negative_for_random_graphs():
    for seed in range(100):
        W = ccs(graph("erdos-renyi", 15, seed, 3, 0.3))
        assert W.min() >= 0 and np.allclose(W, W.T) and np.allclose(W.sum(1), 1)


def test_metropolis_weights_of_a_star_by_hand():
    want = np.array([[1, 1, 1, 1], [1, 3, 0, 0], [1, 0, 3, 0], [1, 0, 0, 3]]) / 4
    assert np.allclose(metropolis(graph("star", 4)), want)


def test_swifts_weights_by_hand():
    ring = graph("ring", 5)
    assert np.allclose(ccs(ring), (ring + np.eye(5)) / 3)
    # a path 0 - 1 - 2 - 3: the inner ones propose 1/3; the ends take what is proposed
    path = np.zeros((4, 4), dtype=bool)
    for i in range(3):
        path[i, i + 1] = path[i + 1, i] = True
    want = np.array([[2, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 2]]) / 3
    assert np.allclose(ccs(path), want)


def test_with_the_clients_rates_the_expected_mixing_is_symmetric():
    links, rate = graph("star", 5), np.array([1.0, 2.0, 4.0, 1.0, 0.5])
    W = ccs(links, rate)
    assert np.allclose(W.sum(1), 1) and W.min() >= 0
    expected = (rate / rate.sum())[:, None] * (W - np.eye(5))
    assert np.allclose(expected, expected.T) and not np.allclose(W, W.T)
    assert np.allclose(mixing("ccs-rates", ("star", 5), tuple(rate)), W)


def test_uniform_weights_are_the_plain_mean_of_oneself_and_the_neighbours():
    assert np.allclose(uniform(graph("star", 3)), np.array([[2, 2, 2], [3, 3, 0], [3, 0, 3]]) / 6)
    assert (uniform(graph("complete", 4)) == 0.25).all()


def test_of_a_cohort_only_its_own_links_count():
    links = among(graph("ring", 5), [0, 1, 3])
    assert np.argwhere(links).tolist() == [[0, 1], [1, 0]]
    assert metropolis(links)[3].tolist() == [0, 0, 0, 1, 0]


def test_mixing_by_hand_and_the_mean_stays():
    values = {j: Params(a=torch.tensor([float(j), 1.0])) for j in range(4)}
    W = metropolis(graph("ring", 4))
    mixed = mix({i: W[i] for i in range(4)}, values.items())
    assert torch.allclose(mixed[1]["a"], torch.tensor([1.0, 1.0]).double())  # (0 + 1 + 2) / 3
    assert torch.allclose(
        sum(v["a"] for v in mixed.values()) / 4, torch.tensor([1.5, 1.0]).double()
    )
    total = add_step(mixed[1], values[1], Params(a=torch.tensor([1.5, 1.0])))
    assert total["a"].tolist() == [1.5, 1.0] and total["a"].dtype == torch.float32


def test_of_batch_statistics_the_mean_takes_the_own_ones_after_the_step():
    before, after = (Params(w=torch.tensor([x]), var=torch.tensor([x])) for x in (1.0, 0.1))
    mixed = Params(
        w=torch.tensor([0.4]).double(), var=torch.tensor([0.4]).double()
    )  # a third of 1.0, 0.1 and 0.1
    total = add_step(mixed, before, after, {"var"}, self_weight=1 / 3)
    assert total["w"].item() == pytest.approx(0.4 - 0.9) and total["var"].item() == pytest.approx(
        0.1
    )


def test_disagreement_shrinks_by_the_second_eigenvalue():
    W, g = metropolis(graph("torus", 12)), np.random.Generator(np.random.Philox(0))
    x = g.normal(size=(12, 3))
    second = np.sort(abs(np.linalg.eigvalsh(W)))[-2]

    def disagreement(x: np.ndarray) -> float:
        return float(((x - x.mean(0)) ** 2).sum())

    for _ in range(5):
        x, before = W @ x, disagreement(x)
        assert disagreement(x) <= second**2 * before + 1e-12


def test_graphs_are_the_same_each_time_and_cannot_be_written():
    assert differences(graph("erdos-renyi", 9, 0, 3, 0.5), graph("erdos-renyi", 9, 0, 3, 0.5)) == []
    with pytest.raises(ValueError, match="read-only"):
        graph("ring", 9)[0, 0] = True


def test_a_run_records_its_graph_once_and_without_a_graph_nothing():
    ring = start(Serial(), job("swift", "--algorithm.topology", "ring", "--models.mix", "mlp"))
    assert describe.neighbours(ring)["links"].tolist() == [
        [0, 1],
        [0, 5],
        [1, 2],
        [2, 3],
        [3, 4],
        [4, 5],
    ]
    assert describe.neighbours(start(Serial(), job("fedavg", "--models.mix", "mlp"))) == {}
