"""FedCP, whose policy divides representations between two heads: what it becomes in neutral
settings, what stays with clients, and two rounds in plain torch.
"""

import math

import pytest
import torch
from torch.nn import functional as F

from hpcfed.algorithms.personal.fedcp import VARIANCES, Gated
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from hpcfed.models.model import in_head
from hpcfed.models.personal import in_personal
from hpcfed.training.losses import mean_discrepancy
from tests.contract import toy
from tests.contract.referee import TWO, Referee, batch_of, descend, mean
from tests.contract.test_equalities import near

MLP = ("--models.mix", "mlp")


# --- FedCP


def test_fedcp_of_personal_shares_alone_is_fedper(monkeypatch):
    monkeypatch.setattr(Gated, "share", lambda self, z, v: torch.ones_like(z))
    ours = toy.start(Serial(), toy.job("fedcp", "--algorithm.lam", "0"))
    theirs = toy.start(Serial(), toy.job("fedper"))
    ours.state["head.bias"].zero_()
    for k, client in theirs.fed.clients.items():
        own = client.params(in_head).under("head.")
        ours.fed.clients[k].load({f"personal.{name}": value for name, value in own.items()})
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
    own = dict.fromkeys(range(6), referee.initial().pick(in_personal))
    for cohort in referee.run():
        models = {}
        for k in cohort:
            model = referee.with_weights({**state, **own[k]})
            x, y = batch_of(referee.rounds, k)
            rows = model.personal.weight.detach().sum(0)
            v, start = rows / rows.norm(), model.body(x).detach()
            for _ in range(2):
                z = model.body(x)
                hidden = F.relu(model.policy[1](model.policy[0](z * v)))
                one, two = (hidden / 0.5).exp().chunk(2, 1)
                a = one / (one + two)
                value = F.cross_entropy(model.personal(a * z) + model.head((1 - a) * z), y)
                for s in (10, 15, 20, 50):
                    kernel = lambda p, q, s=s: (  # noqa: E731
                        (-(p[:, None] - q).square().sum(2) / (2 * s)).exp().mean()
                    )
                    term = kernel(z, z) + kernel(start, start) - 2 * kernel(z, start)
                    value = value + float(lam) * term
                descend(value, model, only=lambda name: not in_head(name))
            weights = Params(model.state_dict()).clone()
            own[k] = weights.pick(in_personal)
            sent = weights.pick(lambda name: not in_personal(name))
            for name in ("weight", "bias"):
                sent[f"head.{name}"] = 0.5 * (sent[f"head.{name}"] + own[k][f"personal.{name}"])
            models[k] = sent
        state = mean(models).pick(state.__contains__)
    assert near(referee.rounds.state, state, 1e-5)
    for k, client in referee.fed.clients.items():
        assert near(client.params(in_personal), own[k], 1e-5)


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
