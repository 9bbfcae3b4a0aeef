"""DSGT: the mean of its trackers, its limit on quadratics, its relatives, and two rounds in plain
torch.
"""

import numpy as np
import pytest
import torch

from hpcfed.algorithms.decentralised.dsgt import DSGT
from hpcfed.algorithms.decentralised.mixing import uniform
from hpcfed.algorithms.decentralised.peers import PeersInStep
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from hpcfed.engine.rounds import Rounds
from tests.contract import toy
from tests.contract.referee import LR, Referee, equal_mean, mean
from tests.contract.test_equalities import near, run

ALL = ("--participation", "1")
COMPLETE = ("--algorithm.topology", "complete")
RING = ("--algorithm.topology", "ring")
MLP = ("--models.mix", "mlp", "--local.lr", "0.1")


def mean_memory(rounds: Rounds, name: str) -> Params:
    return equal_mean({k: Params(c.memory[name]) for k, c in rounds.fed.clients.items()})


def test_two_rounds_of_dsgt_in_plain_torch():
    referee = Referee("dsgt", *RING, *ALL)
    W = uniform(referee.rounds.algorithm.links(referee.fed))  # of a ring: a third each
    x = {k: referee.initial() for k in range(6)}
    y = g = {k: referee.gradient(k, x[k]) for k in range(6)}
    for _ in referee.run():
        stepped = {k: x[k] - LR * y[k] for k in range(6)}
        x, y = ({i: mean(values, W[i].tolist()) for i in range(6)} for values in (stepped, y))
        new = {k: referee.gradient(k, x[k]) for k in range(6)}
        y, g = {k: y[k] + new[k] - g[k] for k in range(6)}, new
    for k, client in referee.fed.clients.items():
        assert near(client.params(), x[k], 1e-6)
        assert near(Params(client.memory["y"]), y[k], 1e-6)


def test_the_mean_of_the_trackers_is_that_of_the_gradients_after_each_round():
    rounds = toy.start(Serial(), toy.job("dsgt", *MLP, *RING, *ALL))
    for _ in range(3):
        rounds.step()
        assert near(mean_memory(rounds, "y"), mean_memory(rounds, "g"), 1e-6)


def test_averages_over_all_and_full_batches_are_central_gradient_steps():
    """After the first round, in which each client still steps from its own gradient's mean."""
    full = (*MLP, "--local.batch", "1000", *ALL, "--algorithm.weighting", "uniform")
    rounds = toy.start(Serial(), toy.job("dsgt", *MLP, *COMPLETE, *ALL))
    for _ in range(3):
        rounds.step()
    want = run("fedsgd", *full).state
    for client in rounds.fed.clients.values():
        assert near(client.params(), want, 1e-5)


def test_without_links_each_client_descends_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PeersInStep, "rows", lambda self, fed, cohort: np.eye(fed.K))
    rounds = toy.start(Serial(), toy.job("dsgt", *MLP, *COMPLETE, *ALL))
    for _ in range(2):
        rounds.step()
    sgd = ("--local.optimiser", "sgd", "--local.batch", "1000", "--local.keep_optimiser", "true")
    alone = toy.start(Serial(), toy.job("local", *MLP, *sgd, *ALL))
    alone.fed.start_alike()
    for _ in range(2):
        alone.step()
    for k, client in rounds.fed.clients.items():
        assert near(client.params(), alone.fed.clients[k].params(), 1e-6)


QUADRATIC = (
    *("--clients", "2", "--data.train_limit", "16", "--data.partition", "iid", *COMPLETE, *ALL),
    *("--models.mix", "logistic", "--local.lr", "0.1", "--evaluate.every", "1000"),
    *("--evaluate.before", "false", "--rounds", "500"),
)


def test_steps_and_limit_on_two_quadratics_by_hand(monkeypatch: pytest.MonkeyPatch):
    """F_i = (x - c_i)^2 / 2 in every weight, c = (1, 3), from x = 0."""

    def quadratic(self, client, state, model, x, y):
        apart = [p - (1.0, 3.0)[client.id] for p in model.parameters()]
        return 0.5 * sum(d.square().sum() for d in apart)

    monkeypatch.setattr(DSGT, "loss", quadratic)
    rows = np.array([[0.75, 0.25], [0.25, 0.75]])
    monkeypatch.setattr(PeersInStep, "rows", lambda self, fed, cohort: rows)
    rounds = toy.start(Serial(), toy.job("dsgt", *QUADRATIC))
    clients = list(rounds.fed.clients.values())
    for client in clients:
        client.load(client.params() * 0)

    def values() -> list[list[float]]:
        x = [client.params()["head.bias"][0].item() for client in clients]
        return [x, [client.memory["y"]["head.bias"][0].item() for client in clients]]

    rounds.step()
    assert np.allclose(values(), [(0.15, 0.25), (-1.35, -2.25)], atol=1e-6)
    rounds.step()
    assert np.allclose(values(), [(0.3325, 0.4275), (-1.3925, -1.8475)], atol=1e-6)
    while rounds.t < 120:
        rounds.step()
    assert np.allclose(values(), [(2, 2), (0, 0)], atol=1e-4)
    assert all(
        torch.allclose(p, torch.tensor(2.0), atol=1e-4) for p in clients[0].params().values()
    )


def test_a_message_of_dsgt_is_a_model_and_as_many_gradients():
    rounds = toy.start(Serial(), toy.job("dsgt", "--models.mix", "small", *RING, *ALL))
    fed = rounds.fed
    size = fed.shapes().nbytes + fed.shapes(fed.trainable).nbytes
    assert size < 2 * fed.shapes().nbytes  # batch statistics have no gradients
    assert rounds.step()[0]["clients/up"].tolist() == [2 * size] * 6
