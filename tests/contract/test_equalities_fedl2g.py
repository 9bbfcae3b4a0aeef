"""FedL2G: its gradient without a second derivative, what it becomes in neutral settings, and two
rounds in plain torch.
"""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from hpcfed.algorithms.common_head.fedl2g import split_quiz
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from hpcfed.models.model import Head, Model
from tests.contract import referee, toy
from tests.contract.test_equalities import run

NOW = ("--algorithm.warmup", "0")
FEATURES = ("--algorithm.guides", "features")


def test_without_its_term_it_is_local_training():
    ours, theirs = run("fedl2g", "--algorithm.lam", "0", "--algorithm.warmup", "50"), run("local")
    for part in ("weights", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == []
    assert not ours.column("up").any()


def double_backward(model: nn.Module, v, study, quiz, lr: float, lam: float, features: bool):
    """The gradient by definition: of the quiz loss, through a step that depends on v."""
    v = v.clone().requires_grad_()
    weights = {name: value.detach().requires_grad_() for name, value in model.named_parameters()}
    x, y = study
    body = {n.removeprefix("body."): w for n, w in weights.items() if n.startswith("body.")}
    logits = functional_call(model, weights, (x,))
    guided = functional_call(model.body, body, (x,)) if features else logits
    value = F.cross_entropy(logits, y) + lam * F.mse_loss(guided, v[y])
    slopes = torch.autograd.grad(
        value, list(weights.values()), create_graph=True, allow_unused=True
    )
    u = {n: w - lr * s for (n, w), s in zip(weights.items(), slopes, strict=True)}
    loss = F.cross_entropy(functional_call(model, u, (quiz[0],)), quiz[1])
    return torch.autograd.grad(loss, v)[0]


def meta_step(flags: tuple[str, ...], model: nn.Module, v, study, quiz, lr: float):
    rounds = toy.start(Serial(), toy.job("fedl2g", "--models.mix", "mlp", *flags))
    client = rounds.fed.clients[4]
    on_model: Any = SimpleNamespace(task=client.task, model=model)
    return rounds.algorithm.meta_step(on_model, Params(v=v), study, quiz, lr)


@pytest.mark.parametrize("guides", ["logits", "features"])
def test_its_gradient_is_that_of_two_backward_passes(guides: str):
    g = torch.Generator().manual_seed(0)
    body = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.BatchNorm1d(7), nn.Linear(7, 6))
    model = Model(body, Head(6, 4)).double()
    x, y = torch.randn(9, 5, generator=g).double(), torch.randint(4, (9,), generator=g)
    v = torch.randn(4, 6 if guides == "features" else 4, generator=g).double()
    study, quiz = (x[:5], y[:5]), (x[5:], y[5:])
    flags = ("--algorithm.lam", "0.7", "--algorithm.guides", guides)
    got = meta_step(flags, model, v, study, quiz, 0.3)
    want = double_backward(model.eval(), v, study, quiz, 0.3, 0.7, guides == "features")
    assert torch.allclose(got, want, rtol=0, atol=1e-10) and want.any()


def test_its_gradient_by_hand():
    """Only a bias: theta' = (0.5, -0.5), whose softmax is (0.731, 0.269)."""
    model = Model(nn.Identity(), Head(1, 2))
    nn.init.zeros_(model.head.weight), nn.init.zeros_(model.head.bias)
    batch = torch.zeros(1, 1), torch.tensor([0])
    got = meta_step((), model, torch.zeros(2, 2), batch, batch, 1.0)
    want = torch.tensor([[-0.268941, 0.268941], [0.0, 0.0]])
    assert torch.allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("guides", ["logits", "features"])
def test_two_rounds_are_those_of_plain_torch(guides: str):
    flags = (*NOW, "--algorithm.guides", guides, "--algorithm.server_lr", "5")
    rounds = toy.start(Serial(), toy.job("fedl2g", *referee.FULL, *flags))
    fed, models, v = rounds.fed, referee.models_of(rounds), rounds.state["v"].clone()
    for _ in range(2):
        total, holders = torch.zeros_like(v), torch.zeros(len(v), 1)
        for k, model in models.items():
            study, quiz = (
                (fed.prepare(x), y)
                for part in split_quiz(fed, fed.clients[k])
                for x, y in [part.batch(np.arange(len(part)))]
            )
            x, y = study
            z = model.body(x)
            guided = z if guides == "features" else model.head(z)
            referee.descend(F.cross_entropy(model.head(z), y) + F.mse_loss(guided, v[y]), model)
            if len(quiz[1]):
                copy = deepcopy(model).eval()
                total += double_backward(copy, v, study, quiz, referee.LR, 1, guides == "features")
                holders[y.unique()] += 1
        v = v - 5 * total / holders.clamp(min=1)
        rounds.step()
        assert torch.allclose(rounds.state["v"], v, rtol=0, atol=1e-5)
    referee.assert_models_agree(rounds, models, 1e-5)


def test_vectors_stay_without_a_rate_and_models_in_the_warm_up():
    rounds = toy.start(Serial(), toy.job("fedl2g", *NOW, "--algorithm.server_lr", "0"))
    start = rounds.state["v"]
    rounds.step()
    assert torch.equal(rounds.state["v"], start)
    rounds = toy.start(Serial(), toy.job("fedl2g", "--algorithm.warmup", "1"))
    start = rounds.state["v"], [c.params() for c in rounds.fed.clients.values()]
    rounds.step()
    assert not torch.equal(rounds.state["v"], start[0])
    assert toy.differences([c.params() for c in rounds.fed.clients.values()], start[1]) == []


def test_no_quiz_example_is_trained_on_and_a_client_with_one_example_has_no_weight():
    rounds = toy.start(Serial(), toy.job("fedl2g", *NOW, "--participation", "1"))
    fed = rounds.fed
    for client in fed.clients.values():
        study, quiz = split_quiz(fed, client)
        assert sorted([*study.rows, *quiz.rows]) == sorted(client.train.rows)
        assert len(quiz) == min(16, client.n // 2)
    fed.participants.begin(0, [0, 1], False)
    for k, weighs in ((0, False), (1, True)):
        (term,) = rounds.algorithm.local(fed, fed.clients[k], rounds.state, 0).value.terms
        assert bool(term.weight["v"].any()) == bool(term.value["v"].any()) == weighs
    rounds = toy.start(Serial(), toy.job("fedl2g", *NOW, "--participation", "1"))
    row = rounds.step()[0]
    assert row["clients/examples"].tolist() == [n - min(16, n // 2) for n in fed.sizes]


def test_a_client_moves_the_vectors_of_its_classes_alone():
    rounds = toy.start(Serial(), toy.job("fedl2g", *NOW, "--participation", "1"))
    fed, state = rounds.fed, rounds.state
    fed.participants.begin(0, [1], False)
    upload = rounds.algorithm.local(fed, fed.clients[1], state, 0)
    mean = fed.mean([(1, upload.value)], keep=rounds.algorithm.averaged(fed, state), per="row")
    new = rounds.algorithm.server(fed, state, mean, [1])
    changed = (new["v"] != state["v"]).any(1)
    assert changed.tolist() == [False, False, True, False]  # client 1 has one class
