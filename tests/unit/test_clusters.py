"""Clusters: their models in one state, which one is nearest or fits best, first centres and empty
ones.
"""

import pytest
import torch

from hpcfed.algorithms.clusters import clusters
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from tests.contract import toy
from tests.threads import spmd

EVERYTHING = frozenset({"w", "v"}).__contains__


def model(w: float, v: float) -> Params:
    return Params(w=torch.full((2, 2), w), v=torch.full((3,), v))


STATE = clusters.stack([model(0, 0), model(1, 10), model(1, 10)])


def test_models_are_stacked_and_come_back():
    assert {name: tuple(v.shape) for name, v in STATE.items()} == {"w": (3, 2, 2), "v": (3, 3)}
    assert toy.differences(clusters.row(STATE, 1), model(1, 10)) == []


def test_common_parts_of_clusters_are_stored_once():
    state = clusters.stack([model(0, 0), model(1, 10)], per_cluster=lambda name: name == "w")
    assert {name: len(v) for name, v in state.items()} == {"w": 2, "v": 1}
    assert (
        toy.differences(clusters.row(state, 1), Params(w=model(1, 0)["w"], v=model(0, 0)["v"]))
        == []
    )


def test_distances_are_squared_and_over_the_wanted_tensors():
    assert clusters.squares(model(1, 2), STATE, EVERYTHING) == [4 * 1 + 3 * 4, 3 * 64, 3 * 64]
    assert clusters.squares(model(1, 2), STATE, lambda name: name == "w") == [4, 0, 0]


def test_of_equally_near_centres_the_first_is_taken():
    assert clusters.nearest(model(1, 9), STATE, EVERYTHING) == (1, 3.0)


def test_an_empty_cluster_gets_the_farthest_client_that_is_not_alone():
    by_client = {0: (0, 1.0), 1: (0, 5.0), 2: (2, 9.0), 3: (0, 5.0)}
    assert clusters.reseed(by_client, 3) == {0: 0, 1: 1, 2: 2, 3: 0}
    assert clusters.reseed(by_client, 0) == {0: 0, 1: 0, 2: 2, 3: 0}
    assert clusters.reseed(by_client, 4) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert clusters.reseed({0: (0, 3.0)}, 2) == {0: 0}


def seeded(comm, M: int, spread: bool) -> set[float]:
    """The first centres' values, where clients 0, 2, 4 have weights of 0 and the others of 1 but
    for a little.
    """
    rounds = toy.start(comm, toy.job("fesem", "--models.mix", "mlp"))
    fed = rounds.fed
    fed.participants.begin(0, list(range(6)), False)
    for client in fed.mine(range(6)):
        client.skeleton.flat.fill_(client.id % 2 + client.id / 1000)
        client.memory["received model"] = client.params().clone()
    state = clusters.stack([fed.initial()] * M)
    chosen = clusters.seeds(
        fed, fed.mine(range(6)), state, lambda name: name == "head.bias", spread
    )
    return {round(float(v[0]), 3) for v in chosen["head.bias"]}


def test_centres_are_models_of_different_clients_and_of_groups_far_apart():
    assert {round(v) for v in seeded(Serial(), 2, True)} == {0, 1}
    assert len(seeded(Serial(), 4, False)) == 4
    assert spmd(3, lambda comm: seeded(comm, 3, True)) == [seeded(Serial(), 3, True)] * 3


def test_with_fewer_clients_than_centres_the_others_stay():
    assert len(seeded(Serial(), 8, True) - {0.0, 1.001, 0.002, 1.003, 0.004, 1.005}) > 0


def test_the_fittest_model_is_the_one_of_the_smallest_loss_and_the_clients_own_stays():
    rounds = toy.start(Serial(), toy.job("ifca", "--models.mix", "mlp"))
    fed, client = rounds.fed, rounds.fed.clients[1]  # has examples of class 2 alone
    bias = [torch.eye(4)[c] * 5 for c in (0, 2, 2)]
    models = [Params({**fed.initial().map(torch.zeros_like), "head.bias": b}) for b in bias]
    before = client.params()
    assert clusters.fittest(fed, client, clusters.stack(models)) == 1
    assert toy.differences(client.params(), before) == []


@pytest.mark.parametrize("share, rows", [("false", 3), ("true", 1)])
def test_ifca_may_share_one_body(share: str, rows: int):
    rounds = toy.start(
        Serial(), toy.job("ifca", "--models.mix", "mlp", "--algorithm.share_body", share)
    )
    lengths = {name.split(".")[0]: len(v) for name, v in rounds.state.items()}
    assert lengths == {"body": rows, "head": 3}
