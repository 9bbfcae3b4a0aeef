"""FedPer, FedBABU and FedBN, which share some layers: what they become, and two rounds in plain
torch.
"""

import numpy as np
import pytest
import torch
from torch import nn

from hpcfed.algorithms.personal.fedrep import FedRep
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from hpcfed.models import MODELS, Entry
from hpcfed.models.model import in_head
from tests.contract import toy
from tests.contract.referee import TWO, Referee, equal_mean, mean
from tests.contract.test_equalities import ONE, SGD, near, run, start_alike

UNIFORM = ("--algorithm.weighting", "uniform")
MLP = ("--models.mix", "mlp")
NORMED = ("--models.mix", "normed")
THREE = (  # clients, all in each round
    *("--participation", "1", "--clients", "3"),
    *("--data.partition", "iid", "--data.train_limit", "48"),
)


def normed(shape: tuple[int, ...], d: int) -> nn.Module:
    """A body with batch normalisation in a nested block, of names without "bn", and a layer
    normalisation.
    """
    block = nn.Sequential(nn.Linear(64, d), nn.BatchNorm1d(d), nn.ReLU())
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), block, nn.LayerNorm(d))


@pytest.fixture(autouse=True)
def normed_model(monkeypatch: pytest.MonkeyPatch):
    entry = Entry("tests.contract.test_equalities_layers:normed", "of the tests")
    monkeypatch.setitem(MODELS, "normed", entry)


def test_fedbn_of_a_model_without_normalisation_is_fedavg_of_equal_weights(capsys):
    ours, theirs = run("fedbn", *MLP), run("fedavg", *MLP, *UNIFORM)
    assert "mlp has no layers of batch normalisation" in capsys.readouterr().err
    assert toy.differences(ours.state, theirs.state) == []
    for column in ("train_loss", "accuracy_before", "examples", "down", "up"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


@pytest.mark.parametrize("method", ["fedper", "fedbn"])
def test_one_client_alone_is_local_training(method: str):
    ours, theirs = (run(name, *ONE, "--models.mix", "small") for name in (method, "local"))
    assert toy.differences(ours.weights, theirs.weights) == []
    for column in ("train_loss", "accuracy", "loss", "examples"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


def test_what_fedper_keeps_is_what_lgfedavg_sends():
    size = {
        method: toy.start(Serial(), toy.job(method, "--models.mix", "small"))
        for method in ("fedper", "lgfedavg", "fedavg")
    }
    down, up = zip(*(r.algorithm.traffic(r.fed, 3) for r in size.values()), strict=True)
    assert down[0] + down[1] == down[2] and up[0] + up[1] == up[2]


def test_two_rounds_of_fedper_in_plain_torch():
    referee = Referee("fedper", *TWO)
    body = referee.initial().pick(lambda name: not in_head(name))
    heads = {k: referee.initial(k).pick(in_head) for k in range(6)}
    for cohort in referee.run():
        models = {k: referee.train(k, {**body, **heads[k]}) for k in cohort}
        heads |= {k: model.pick(in_head) for k, model in models.items()}
        body = mean(models).pick(body.__contains__)
    assert near(referee.rounds.state, body, 1e-6)
    for k, client in referee.fed.clients.items():
        assert near(client.params(in_head), heads[k], 1e-6)


def test_two_rounds_of_fedbabu_and_its_fine_tuning_in_plain_torch():
    flags = ("--algorithm.final_epochs", "3", "--algorithm.final_part", "head")
    referee = Referee("fedbabu", *TWO, *flags)
    body = referee.initial().pick(lambda name: not in_head(name))
    head = referee.initial().pick(in_head)
    for cohort in referee.run():
        models = {k: referee.train(k, {**body, **head}, only=body.__contains__) for k in cohort}
        body = equal_mean(models).pick(body.__contains__)
    assert near(referee.rounds.state, body, 1e-6)
    for client in referee.fed.clients.values():
        assert toy.differences(client.params(in_head), head) == []
    referee.rounds.finish()
    for k, client in referee.fed.clients.items():
        want = referee.train(k, {**body, **head}, only=in_head, steps=3)
        assert near(client.params(), want, 1e-6)


@pytest.mark.parametrize("part", ["all", "body"])
def test_fedbabu_fine_tunes_the_part_that_is_named(part: str):
    rounds = toy.start(Serial(), toy.job("fedbabu", *MLP, "--algorithm.final_part", part))
    rounds.step()
    body, head = rounds.state, rounds.fed.initial(in_head)
    rounds.finish()
    client = rounds.fed.clients[4]
    assert toy.differences(client.params(body.__contains__), body) != []
    assert bool(toy.differences(client.params(in_head), head)) == (part == "all")


def test_fedbabu_without_fine_tuning_ends_with_the_global_model_of_each_client():
    flags = ("--models.mix", "small", "--algorithm.final_epochs", "0", "--evaluate.common", "true")
    rounds = toy.start(Serial(), toy.job("fedbabu", *flags))
    row = rounds.step()[0]
    rounds.finish()
    want = Params({**rounds.fed.initial(), **rounds.state})
    for client in rounds.fed.clients.values():
        assert toy.differences(client.params(), want) == []
    client = rounds.fed.pooled()
    client.load(want)
    x, y = rounds.fed.data.test.batch(np.arange(len(rounds.fed.data.test)))
    right = client.model.eval()(rounds.fed.prepare(x)).argmax(1) == y
    assert row["rounds/accuracy_common"] == pytest.approx(right.double().mean().item())


def test_fedbabu_is_fedrep_whose_heads_are_alike_and_never_trained(monkeypatch):
    start_alike(monkeypatch, FedRep)
    flags = ("--models.mix", "small", "--algorithm.weighting", "samples")
    ours = run("fedbabu", *flags)
    theirs = run("fedrep", *flags, "--algorithm.head_epochs", "0")
    assert toy.differences(ours.state, theirs.state) == []
    assert toy.differences(ours.column("train_loss"), theirs.column("train_loss")) == []


def test_a_weight_decay_leaves_fedbabus_head_as_it_is():
    flags = (*MLP, *SGD, "--local.weight_decay", "0.1", "--local.momentum", "0.9")
    rounds = toy.start(Serial(), toy.job("fedbabu", *flags))
    rounds.step()
    head = rounds.fed.initial(in_head)
    for client in rounds.fed.clients.values():
        assert toy.differences(client.params(in_head), head) == []


BATCH = {f"body.2.1.{name}" for name in ("weight", "bias", "running_mean", "running_var")}


def test_two_rounds_of_fedbn_in_plain_torch():
    referee = Referee("fedbn", *TWO, *NORMED, *THREE)
    w = referee.initial().pick(lambda name: name not in BATCH)
    norms = {k: referee.initial(k).pick(BATCH.__contains__) for k in range(3)}
    for cohort in referee.run():
        models = {k: referee.train(k, {**w, **norms[k]}) for k in cohort}
        norms = {k: model.pick(BATCH.__contains__) for k, model in models.items()}
        w = equal_mean(models).pick(w.__contains__)
    assert near(referee.rounds.state, w, 1e-5)
    for k, client in referee.fed.clients.items():
        assert near(client.params(BATCH.__contains__), norms[k], 1e-5)


@pytest.mark.parametrize(
    "norms, names", [("batch", BATCH), ("all", BATCH | {"body.3.weight", "body.3.bias"})]
)
def test_fedbn_sends_all_tensors_but_those_of_its_layers(norms: str, names: set[str]):
    rounds = toy.start(Serial(), toy.job("fedbn", *NORMED, "--algorithm.norms", norms, *THREE))
    fed = rounds.fed
    nbytes = fed.shapes(lambda name: name not in names).nbytes
    assert set(rounds.state) == set(fed.shapes()) - names
    assert rounds.algorithm.traffic(fed, 1) == (nbytes, nbytes)
    rounds.step()
    for client in fed.clients.values():
        rounds.algorithm.receive(client, rounds.state)
    ours, theirs = (fed.clients[k].params() for k in (1, 2))
    unequal = {name for name in ours if not torch.equal(ours[name], theirs[name])}
    assert unequal == names
