"""FedCP, whose policy divides representations between two heads, and GPFL, whose valve opens to
global and personal features: what they become in neutral settings, and two rounds in plain torch.
"""

import math

import pytest
import torch
from torch.nn import functional as F

from hpcfed.algorithms.personal import gpfl
from hpcfed.algorithms.personal.fedcp import VARIANCES, Gated
from hpcfed.algorithms.personal.gpfl import GPFL
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from hpcfed.models.model import in_head
from hpcfed.models.personal import in_personal
from hpcfed.training.losses import mean_discrepancy
from tests.contract import toy
from tests.contract.referee import TWO, Referee, batch_of, descend, discrepancy, mean
from tests.contract.test_equalities import near

MLP = ("--models.mix", "mlp")


# --- FedCP


def test_fedcp_of_personal_shares_alone_is_fedper(monkeypatch):
    monkeypatch.setattr(Gated, "share", lambda self, z, v: torch.ones_like(z))
    ours = toy.start(Serial(), toy.job("fedcp", "--algorithm.lam", "0"))
    theirs = toy.start(Serial(), toy.job("fedper"))
    ours.state["head.bias"].zero_()
    for k, client in theirs.fed.clients.items():
        head = client.params(in_head).under("head.")
        ours.fed.clients[k].load(head.prefixed("personal."))
    rows = ours.step()[0], theirs.step()[0]
    for column in ("train_loss", "accuracy", "loss"):
        a, b = (row[f"clients/{column}"][row["clients/cohort"] > 0] for row in rows)
        assert toy.differences(a, b) == [], column
    body = ours.state.pick(lambda name: name.startswith("body."))
    assert toy.differences(body, theirs.state) == []


@pytest.mark.parametrize("lam", ["0", "2"])
def test_two_rounds_of_fedcp_in_plain_torch(lam: str, monkeypatch):
    monkeypatch.setattr(F, "gumbel_softmax", lambda scores, tau, dim: F.softmax(scores / tau, dim))
    referee = Referee("fedcp", *TWO, "--algorithm.lam", lam, "--algorithm.tau", "0.5")
    state = referee.initial().pick(lambda name: not in_personal(name))
    heads = dict.fromkeys(range(6), referee.initial().pick(in_personal))
    for cohort in referee.run():
        models = {}
        for k in cohort:
            model = referee.with_weights({**state, **heads[k]})
            x, y = batch_of(referee.rounds, k)
            rows = model.personal.weight.detach().sum(0)
            v, start = rows / rows.norm(), model.body(x).detach()
            for _ in range(2):
                z = model.body(x)
                hidden = F.relu(model.policy[1](model.policy[0](z * v)))
                one, two = (hidden / 0.5).exp().chunk(2, 1)
                a = one / (one + two)
                value = F.cross_entropy(model.personal(a * z) + model.head((1 - a) * z), y)
                value = value + float(lam) * discrepancy(z, start)
                descend(value, model, only=lambda name: not in_head(name))
            weights = Params(model.state_dict()).clone()
            heads[k] = weights.pick(in_personal)
            sent = weights.pick(lambda name: not in_personal(name))
            for name in ("weight", "bias"):
                sent[f"head.{name}"] = 0.5 * (sent[f"head.{name}"] + heads[k][f"personal.{name}"])
            models[k] = sent
        state = mean(models).pick(state.__contains__)
    assert near(referee.rounds.state, state, 1e-5)
    for k, client in referee.fed.clients.items():
        assert near(client.params(in_personal), heads[k], 1e-5)


def test_the_discrepancy_by_hand():
    one, two = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [0.0]])
    kernels = [math.exp(-4 / (2 * s)) for s in (10, 15, 20, 50)]
    want = sum((1 + k) / 2 + 1 - (1 + k) for k in kernels)
    assert mean_discrepancy(one, two, VARIANCES).item() == pytest.approx(want, abs=1e-6)
    z = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    assert mean_discrepancy(z, z.clone(), VARIANCES).item() == 0


def test_a_client_of_fedcp_draws_noise_in_training_alone():
    rounds = toy.start(Serial(), toy.job("fedcp", *MLP))
    rounds.step()
    model = rounds.fed.clients[4].model
    z, v = torch.ones(3, toy.D), model.context()
    assert v.norm().item() == pytest.approx(1, abs=1e-6)
    model.eval()
    assert torch.equal(model.share(z, v), model.share(z, v))
    model.train()
    assert not torch.equal(model.share(z, v), model.share(z, v))


# --- GPFL


def test_gpfl_with_the_identity_as_valve_and_without_its_terms_is_fedper(monkeypatch):
    train = GPFL.train

    def keep_valve(self, fed, client, received, t):
        only = lambda name: not name.startswith("valve.")  # noqa: E731
        return train(self, fed, client, received, t, only=only)

    monkeypatch.setattr(GPFL, "train", keep_valve)
    monkeypatch.setattr(gpfl, "cosines", lambda z, vectors: z.new_zeros(len(z), len(vectors)))
    terms = ("--algorithm.lam", "0", "--algorithm.mu", "0")
    ours = toy.start(Serial(), toy.job("gpfl", "--models.relu_head", "true", *terms))
    theirs = toy.start(Serial(), toy.job("fedper", "--models.relu_head", "true"))
    for name, value in ours.state.items():
        if name in {
            f"valve.{part}.2.{w}" for part in ("gamma", "beta") for w in ("weight", "bias")
        }:
            value.zero_()
    for _ in range(2):
        rows = ours.step()[0], theirs.step()[0]
        before, want = (row["clients/accuracy_before"] for row in rows)
        assert toy.differences(before, want) == []
    body = ours.state.pick(lambda name: name.startswith("body."))
    assert toy.differences(body, theirs.state) == []
    for k, client in theirs.fed.clients.items():
        assert toy.differences(ours.fed.clients[k].params(in_head), client.params(in_head)) == []


def test_two_rounds_of_gpfl_in_plain_torch():
    lam, mu = 0.3, 0.2
    flags = ("--algorithm.lam", str(lam), "--algorithm.mu", str(mu))
    referee = Referee("gpfl", *TWO, *flags)
    shared = lambda name: name.startswith(("body.", "valve."))  # noqa: E731
    state = referee.initial().pick(shared)
    heads = {k: referee.initial(k).pick(in_head) for k in range(6)}
    for cohort in referee.run():
        models, received = {}, state["valve.embeddings"]
        for k in cohort:
            model = referee.with_weights({**state, **heads[k]})
            x, y = batch_of(referee.rounds, k)
            personal = received[y].mean(0)  # each class as often as the client has it

            def valve(z, condition, model=model):
                gamma, beta = (
                    F.layer_norm(F.relu(part[0](condition)), (toy.D,), part[2].weight, part[2].bias)
                    for part in (model.valve.gamma, model.valve.beta)
                )
                return F.relu((gamma + 1) * z + beta)

            for _ in range(2):
                z = model.body(x)
                features = valve(z, received.mean(0))
                likeness = F.cosine_similarity(features[:, None], model.valve.embeddings, dim=2)
                value = F.cross_entropy(model.head(valve(z, personal)), y)
                value = value + F.cross_entropy(likeness, y)
                value = value + lam * (features - received[y]).square().sum(1).sqrt().mean()
                squares = sum(w.square().sum() for w in model.valve.parameters())
                descend(value + mu / 2 * squares, model)
            models[k] = Params(model.state_dict()).clone()
            heads[k] = models[k].pick(in_head)
        state = mean(models).pick(shared)
    assert near(referee.rounds.state, state, 1e-5)
    for k, client in referee.fed.clients.items():
        assert near(client.params(in_head), heads[k], 1e-5)


def test_a_clients_condition_is_the_mean_of_the_embeddings_of_its_examples():
    rounds = toy.start(Serial(), toy.job("gpfl", *MLP))
    client, embeddings = rounds.fed.clients[1], rounds.state["valve.embeddings"]
    rounds.algorithm.receive(client, rounds.state)
    assert torch.equal(client.params()["condition"], embeddings[2])  # its only class
    x, _ = batch_of(rounds, 1)
    predict = rounds.algorithm.predictor(rounds.fed, client, rounds.state)
    model = client.model.eval()
    assert torch.equal(predict(x), model.head(model.valve(model.body(x), embeddings[2])))
