"""FedRoD and APFL, whose clients keep a second head or a second model: what they become in neutral
settings, what stays with clients, and two rounds in plain torch.
"""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from hpcfed.algorithms.personal.apfl import Mixture
from hpcfed.algorithms.personal.fedrod import log_prior
from hpcfed.algorithms.references.local import Local
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from hpcfed.models.model import Model
from hpcfed.models.personal import in_common
from tests.contract import toy
from tests.contract.referee import LR, STEPS, TWO, Referee, batch_of, equal_mean, mean
from tests.contract.test_equalities import FULL, near, run, start_alike

MLP = ("--models.mix", "mlp")


def personal(name: str) -> bool:
    return not in_common(name)


# --- FedRoD


def test_the_common_model_of_fedrod_without_balance_is_fedavgs_to_the_bit():
    common = ("--evaluate.common", "true")
    ours = run("fedrod", "--algorithm.gamma", "0", *common)
    theirs = run("fedavg", *common)
    assert toy.differences(ours.state, theirs.state) == []
    for a, b in zip(ours.rows, theirs.rows, strict=True):
        assert a["rounds/accuracy_common"] == b["rounds/accuracy_common"]


def test_fedrod_of_equal_numbers_of_examples_is_fedavg():
    equal = ("--clients", "1", "--data.train_limit", "40")  # ten examples of each class
    assert near(run("fedrod", *FULL, *equal).state, run("fedavg", *FULL, *equal).state, 1e-6)


def test_two_rounds_of_fedrod_in_plain_torch():
    referee = Referee("fedrod", *TWO, "--algorithm.gamma", "0.7")
    common = referee.initial().pick(in_common)
    heads = {k: referee.initial().pick(personal) for k in range(6)}
    for name, value in heads[0].items():
        assert torch.equal(value, common[name.replace("personal", "head")])
    for cohort in referee.run():
        models = {}
        for k in cohort:
            y = batch_of(referee.rounds, k)[1]
            n = torch.bincount(y, minlength=toy.CLASSES).float()

            def objective(model, x, y, n=n):
                """The balanced softmax as a share, n_y e^(g_y) / sum_c n_c e^(g_c)."""
                z = model.body(x)
                g = model.head(z)
                weighed = n**0.7 * g.exp()
                share = weighed.gather(1, y[:, None])[:, 0] / weighed.sum(1)
                both = g.detach() + model.personal(z.detach())
                return -share.log().mean() + F.cross_entropy(both, y)

            models[k] = referee.train(k, {**common, **heads[k]}, objective)
        heads |= {k: model.pick(personal) for k, model in models.items()}
        common = mean(models).pick(in_common)
    assert near(referee.rounds.state, common, 1e-6)
    for k, client in referee.fed.clients.items():
        assert near(client.params(personal), heads[k], 1e-6)


def test_the_balanced_softmax_by_hand():
    prior = log_prior(np.array([9, 1]), 1.0)
    losses = [F.cross_entropy(prior[None], torch.tensor([c])).item() for c in (0, 1)]
    assert losses == pytest.approx([0.105361, 2.302585], abs=1e-6)
    assert log_prior(np.array([4, 0]), 0.5).tolist() == pytest.approx([np.log(2), -np.inf])
    assert log_prior(np.array([4, 0]), 0.0).tolist() == [0, 0]


def test_a_client_of_fedrod_predicts_by_both_heads():
    rounds = toy.start(Serial(), toy.job("fedrod", *MLP))
    rounds.step()
    client = rounds.fed.clients[4]
    x, _ = batch_of(rounds, 4)
    predict = rounds.algorithm.predictor(rounds.fed, client, rounds.state)
    model = client.model.eval()
    z = model.body(x)
    assert torch.equal(predict(x), model.head(z) + model.personal(z))
    zero = {name: value * 0 for name, value in client.params(personal).items()}
    client.load(zero)
    assert torch.equal(predict(x), model.classify_common(x))


# --- APFL


UNIFORM = ("--algorithm.weighting", "uniform")
SGD = ("--local.optimiser", "sgd", "--local.lr", "0.1")


@pytest.mark.parametrize("flags", [(), ("--algorithm.mix", "logits", "--algorithm.adapt", "steps")])
def test_the_common_model_of_apfl_is_fedavgs_to_the_bit(flags: tuple[str, ...]):
    ours, theirs = run("apfl", *MLP, *flags), run("fedavg", *MLP, *UNIFORM)
    assert toy.differences(ours.state, theirs.state) == []


@pytest.mark.parametrize("mix", ["weights", "logits"])
def test_apfl_of_the_common_model_alone_predicts_as_fedavg(mix: str):
    flags = ("--algorithm.alpha", "0", "--algorithm.mix", mix)
    ours = toy.start(Serial(), toy.job("apfl", *MLP, *flags))
    theirs = toy.start(Serial(), toy.job("fedavg", *MLP, *UNIFORM))
    start = ours.fed.clients[3].params(personal)
    for _ in range(2):
        rows = ours.step()[0], theirs.step()[0]
    for column in ("accuracy", "loss"):
        a, b = (row[f"clients/{column}"][row["clients/cohort"] > 0] for row in rows)
        assert toy.differences(a, b) == [], column
    assert toy.differences(ours.fed.clients[3].params(personal), start) == []


@pytest.mark.parametrize("mix", ["weights", "logits"])
def test_apfl_of_own_models_alone_is_local_training(mix: str, monkeypatch):
    start_alike(monkeypatch, Local)
    ours = toy.start(
        Serial(), toy.job("apfl", *MLP, "--algorithm.alpha", "1", "--algorithm.mix", mix)
    )
    theirs = toy.start(Serial(), toy.job("local", *MLP))
    for _ in range(2):
        rows = ours.step()[0], theirs.step()[0]
        for column in ("accuracy", "loss"):
            a, b = (row[f"clients/{column}"] for row in rows)
            assert toy.differences(a, b) == [], column
    for k, client in theirs.fed.clients.items():
        copy = ours.fed.clients[k].params().under("personal.")
        assert toy.differences(copy, client.params()) == []


@pytest.mark.parametrize("adapt", ["never", "steps", "rounds"])
@pytest.mark.parametrize("mix", ["weights", "logits"])
def test_two_rounds_of_apfl_in_plain_torch(mix: str, adapt: str):
    flags = ("--algorithm.mix", mix, "--algorithm.adapt", adapt, "--algorithm.alpha", "0.3")
    decay = () if adapt == "never" else ("--algorithm.decay", "0.2")
    referee = Referee("apfl", *TWO, *flags, *decay)
    w = referee.initial().pick(in_common)
    personals = dict.fromkeys(range(6), w)
    alphas = dict.fromkeys(range(6), torch.tensor(0.3))
    model = deepcopy(referee.model.personal)
    for cohort in referee.run():
        models = {}
        for k in cohort:
            x, y = batch_of(referee.rounds, k)
            common, v, alpha = w, personals[k], alphas[k]
            for step in range(STEPS):
                leaves = [
                    {name: value.clone().requires_grad_() for name, value in part.items()}
                    for part in (common, v)
                ]
                share = alpha.clone().requires_grad_()
                value = F.cross_entropy(functional_call(model, leaves[0], (x,)), y)
                slopes = torch.autograd.grad(value, list(leaves[0].values()))
                if mix == "weights":
                    both = {n: share * leaves[1][n] + (1 - share) * common[n] for n in v}
                    mixed = functional_call(model, both, (x,))
                else:
                    logits = functional_call(model, dict(common), (x,))
                    mixed = share * functional_call(model, leaves[1], (x,)) + (1 - share) * logits
                value = F.cross_entropy(mixed, y)
                *others, of_alpha = torch.autograd.grad(value, [*leaves[1].values(), share])
                common = Params({n: common[n] - LR * g for n, g in zip(w, slopes, strict=True)})
                v = Params({n: v[n] - LR * g for n, g in zip(w, others, strict=True)})
                if adapt == "steps" or (adapt == "rounds" and step == 0):
                    alpha = (alpha - LR * (of_alpha + 0.2 * alpha)).clamp(0, 1)
            models[k], personals[k], alphas[k] = common, v, alpha
        w = equal_mean(models)
    assert near(referee.rounds.state, w, 1e-6)
    for k, client in referee.fed.clients.items():
        weights = client.params(personal)
        assert near(weights.under("personal."), personals[k], 1e-6)
        assert weights["alpha"].item() == pytest.approx(alphas[k].item(), abs=1e-6)
    assert (len({a.item() for a in alphas.values()}) == 1) == (adapt == "never")


class Point(nn.Module):
    """A model whose output is its only weight."""

    def __init__(self, value: float):
        super().__init__()
        self.head = nn.Parameter(torch.tensor(value))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head * x


def test_a_step_of_apfl_by_hand():
    """f = (x - 1)^2 / 2, w = 0, v = 3: the mixture 1.5 has the slope 0.5."""
    pair = Mixture(Model(nn.Identity(), Point(0.0)), 0.5, "weights")
    pair.personal.head = Point(3.0)
    alpha = pair.alpha.clone().requires_grad_()
    value = (pair.mixture(torch.ones(()), alpha) - 1).square() / 2
    v = pair.personal.head.head
    slope, of_alpha = torch.autograd.grad(value, [v, alpha])
    assert (v - 0.1 * slope).item() == pytest.approx(2.975)
    assert (alpha - 0.1 * of_alpha).item() == pytest.approx(0.35)
    assert pair.head.head.grad is None


# --- Both


@pytest.mark.parametrize("method", ["fedrod", "apfl"])
def test_a_clients_own_part_starts_as_a_copy_of_pretrained_weights(method: str, tmp_path: Path):
    weights = toy.start(Serial(), toy.job("fedavg", *MLP, "--seed", "5")).fed.initial()
    torch.save(dict(weights), tmp_path / "weights.pt")
    flags = (*MLP, "--models.weights", str(tmp_path / "weights.pt"))
    start = toy.start(Serial(), toy.job(method, *flags)).fed.clients[4].params()
    assert toy.differences(start.pick(in_common), weights) == []
    copies = start.under("personal.")
    for name, value in copies.items():
        source = name if in_common(name) else f"head.{name}"
        assert torch.equal(value, weights[source]), name
    assert copies
