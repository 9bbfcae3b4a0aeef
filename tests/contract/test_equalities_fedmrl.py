"""FedMRL: what it becomes in neutral settings, two rounds in plain torch, and who sends what."""

import pytest
import torch
import torch.nn.functional as F

from hpcfed.algorithms.proxies.fedmrl import FedMRL
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from tests.contract import referee, toy
from tests.contract.test_equalities import run


def test_a_fixed_projector_onto_the_own_representation_is_local_training(monkeypatch):
    flags = ("--models.mix", "mlp,fedhenn-1", "--local.keep_optimiser", "true")
    ours = toy.start(Serial(), toy.job("fedmrl", "--algorithm.m", "0", *flags))
    theirs = toy.start(Serial(), toy.job("local", *flags))
    train = FedMRL.train

    def fixed(self, fed, client, received, t, **how):
        only = lambda name: not name.startswith("projector.")  # noqa: E731
        return train(self, fed, client, received, t, only=only, **how)

    monkeypatch.setattr(FedMRL, "train", fixed)
    for k, client in ours.fed.clients.items():
        weights = client.params()
        weights["projector.weight"] = torch.cat([torch.zeros(toy.D, toy.D), torch.eye(toy.D)], 1)
        weights["projector.bias"] = torch.zeros(toy.D)
        client.load(weights)
        theirs.fed.clients[k].load(weights.under("own."))
    for _ in range(2):
        rows = ours.step()[0], theirs.step()[0]
        for column in ("accuracy", "loss", "train_loss"):
            a, b = (row[f"clients/{column}"] for row in rows)
            assert toy.differences(a, b) == [], column
    for k, client in ours.fed.clients.items():
        large = client.params().under("own.")
        assert toy.differences(large, theirs.fed.clients[k].params()) == []


def test_two_rounds_are_those_of_plain_torch():
    flags = ("--algorithm.coarse", "5", "--algorithm.m", "0.5")
    rounds = toy.start(Serial(), toy.job("fedmrl", *referee.FULL, *flags))
    models, common = referee.models_of(rounds), dict(rounds.state.under("proxy."))
    for _ in range(2):
        for k, pair in models.items():
            pair.proxy.load_state_dict(common)
            x, y = referee.batch_of(rounds, k)
            r = pair.projector(torch.cat([pair.proxy.body(x), pair.own.body(x)], 1))
            value = F.cross_entropy(pair.own.head(r), y)
            value = value + 0.5 * F.cross_entropy(pair.proxy.head(r[:, :5]), y)
            referee.descend(value, pair)
        common = referee.mean({k: Params(pair.proxy.state_dict()) for k, pair in models.items()})
        rounds.step()
    referee.assert_models_agree(rounds, models, 1e-5)
    for name, value in common.items():
        assert torch.allclose(rounds.state[f"proxy.{name}"], value, rtol=0, atol=1e-5)


def test_only_the_common_model_is_sent_and_an_absent_client_keeps_its_projector():
    rounds = toy.start(Serial(), toy.job("fedmrl", "--algorithm.coarse", "5"))
    fed = rounds.fed
    size = rounds.state.nbytes
    assert all(name.startswith("proxy.") for name in rounds.state)
    assert rounds.algorithm.traffic(fed, 4) == (size, size)
    start = {k: client.params()["projector.weight"] for k, client in fed.clients.items()}
    cohort = rounds.step()[0]["clients/cohort"]
    for k, client in fed.clients.items():
        assert torch.equal(client.params()["projector.weight"], start[k]) == (not cohort[k])


def test_the_common_head_reads_the_coarse_part_alone():
    rounds = toy.start(Serial(), toy.job("fedmrl", "--algorithm.coarse", "5", *referee.FULL))
    client, method = rounds.fed.clients[4], rounds.algorithm
    x, _ = referee.batch_of(rounds, 4)
    pair = client.model.eval()
    fine = method.predictor(rounds.fed, client, rounds.state)
    coarse = method.model_copy(update={"inference": "proxy"}).predictor(
        rounds.fed, client, rounds.state
    )
    before = fine(x).detach(), coarse(x).detach()
    with torch.no_grad():
        pair.projector.weight[5:] += 1
    assert torch.equal(coarse(x), before[1]) and not torch.equal(fine(x), before[0])


def test_a_common_model_wider_than_an_own_one_is_refused():
    with pytest.raises(ConfigError, match="has 99 values, more than that of a client's own"):
        run("fedmrl", "--algorithm.coarse", "99")
