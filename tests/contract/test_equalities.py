"""Methods that must become one another: in a neutral setting, bit for bit unless a tolerance is
named.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hpcfed.algorithms.base import Method
from hpcfed.comm import Serial
from hpcfed.core import rng
from hpcfed.core.params import Params
from tests.contract import toy

PLAIN = ("--algorithm.contrastive", "false", "--algorithm.rho", "0")
ALONE = ("--algorithm.averaging", "false")
SGD = ("--models.mix", "mlp", "--local.optimiser", "sgd", "--local.lr", "0.1")
FULL = (*SGD, "--participation", "1", "--local.batch", "1000")  # one full batch a round
AUTHORS = ("--preset", "authors")
ONE = ("--clients", "1", "--data.train_limit", "30")

EQUAL = {  # claim: (method, flags), (method that it must equal, flags)
    "fedprox without its term is fedavg": (("fedprox", "--algorithm.mu", "0"), ("fedavg",)),
    "fedclassavg of all weights without its losses is fedavg": (
        ("fedclassavg", "--algorithm.share", "all", *PLAIN, "--models.mix", "small"),
        ("fedavg",),
    ),
    "feddecorr without averaging and its term is local": (
        ("feddecorr", *ALONE, "--algorithm.beta", "0", "--models.mix", "small"),
        ("local", "--models.mix", "small"),
    ),
    "fedrs without averaging and its factor is local": (
        ("fedrs", *ALONE, "--algorithm.alpha", "1", "--models.mix", "small"),
        ("local", "--models.mix", "small"),
    ),
    "fedclassavg without averaging and contrast is local": (
        ("fedclassavg", *ALONE, "--algorithm.contrastive", "false"),
        ("local",),
    ),
    "fedclassavg without averaging is local with its contrast": (
        ("fedclassavg", *ALONE),
        ("local", "--algorithm.contrastive", "true"),
    ),
    "local training with the authors' contrast is their fedclassavg without averaging": (
        ("fedclassavg", *AUTHORS, *ALONE, "--algorithm.pretrain_epochs", "0"),
        ("local", *AUTHORS, "--algorithm.contrastive", "true"),
    ),
    "local training with the authors' contrast is their fedclassavg of one client alone": (
        (
            *("fedclassavg", *AUTHORS, *ONE, "--models.mix", "small"),
            *("--algorithm.rho", "0", "--algorithm.pretrain_epochs", "0"),
        ),
        ("local", *AUTHORS, *ONE, "--models.mix", "small", "--algorithm.contrastive", "true"),
    ),
    "fedclassavg of one client is that client alone": (
        ("fedclassavg", *PLAIN, *ONE, "--models.mix", "small"),
        ("local", *ONE, "--models.mix", "small"),
    ),
    "steps instead of epochs are the same steps": (
        ("fedavg", *ONE, "--local.batch", "10", "--local.steps", "6"),
        ("fedavg", *ONE, "--local.batch", "10", "--local.epochs", "2"),
    ),
}


def run(method: str, *flags: str) -> toy.Outcome:
    return toy.run(Serial(), toy.job(method, *flags, "--local.keep_optimiser", "true"))


@pytest.mark.parametrize("claim", EQUAL)
def test_equal_to_the_bit(claim: str):
    ours, theirs = (run(*words) for words in EQUAL[claim])
    if "share" not in claim and "local" not in claim and "alone" not in claim:
        assert toy.differences(ours.state, theirs.state) == []
    for part in ("weights", "memory", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part
    for column in ("train_loss", "accuracy", "loss", "examples"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


def near(a: Params, b: Params, tolerance: float) -> bool:
    return (
        all(torch.allclose(a[name], b[name], rtol=0, atol=tolerance) for name in a)
        and a.keys() == b.keys()
    )


def start_alike(patch: pytest.MonkeyPatch, method: type[Method]) -> None:
    """Let all clients of a method start with one model, as those of methods with mixtures do."""
    init = method.init

    def init_alike(self, fed):
        fed.start_alike()
        return init(self, fed)

    patch.setattr(method, "init", init_alike)


def test_fedsgd_is_fedavg_with_one_full_batch_and_plain_sgd():
    assert near(run("fedsgd", *FULL).state, run("fedavg", *FULL).state, 1e-6)


def test_a_gradient_in_batches_is_that_of_the_full_batch():
    small = run("fedsgd", *SGD, "--participation", "1", "--local.batch", "5")
    assert near(small.state, run("fedsgd", *FULL).state, 1e-6)


def test_full_participation_and_full_batches_are_central_gradient_steps():
    assert near(run("fedavg", *FULL).state, run("central", *FULL).state, 1e-5)


def test_one_round_is_one_gradient_step_computed_here():
    rounds = toy.start(Serial(), toy.job("fedavg", *FULL))
    pooled = rounds.fed.pooled()
    pooled.load(rounds.state)
    x, y = pooled.train.batch(np.arange(pooled.n))
    F.cross_entropy(pooled.model(rounds.fed.prepare(x)), y).backward()
    want = Params(
        {name: p.detach() - 0.1 * p.grad for name, p in pooled.model.named_parameters()}
    ).clone()
    pooled.skeleton.zero_grad()
    rounds.step()
    assert near(rounds.state, want, 1e-5)


def test_one_client_is_central_training_but_for_the_order_of_its_examples():
    one = (
        "--clients",
        "1",
        "--data.train_limit",
        "30",
    )  # the pooled data draw their own orders: full batches
    assert near(run("central", *FULL, *one).state, run("fedavg", *FULL, *one).state, 1e-6)


def test_partial_work_counts_in_fedprox_and_is_dropped_by_fedavg():
    slow = ("--participation", "1", "--local.stragglers", "0.5", "--local.epochs", "4")
    prox, avg = run("fedprox", "--algorithm.mu", "0", *slow), run("fedavg", *slow)
    assert prox.column("cohort").sum(1).tolist() == [6, 6, 6] and avg.column("cohort").sum(
        1
    ).tolist() == [3, 3, 3]
    assert not near(prox.state, avg.state, 1e-4)


def test_a_large_mu_keeps_the_model_near_the_anchor():
    flags = (
        *SGD,
        "--participation",
        "1",
        "--local.lr",
        "0.0001",
        "--local.epochs",
        "20",
        "--rounds",
        "1",
    )
    start = toy.start(Serial(), toy.job("fedavg", *flags)).state

    def moved(mu: str) -> float:
        change = run("fedprox", *flags, "--algorithm.mu", mu).state - start
        return sum(v.square().sum().item() for v in change.values()) ** 0.5

    assert moved("5000") < 0.5 * moved("100") < 0.5 * moved("0")


def test_the_classifier_of_identical_clients_is_unchanged_by_averaging(
    monkeypatch: pytest.MonkeyPatch,
):
    head = {"head.weight": torch.randn(toy.CLASSES, toy.D, generator=rng.torch_stream(0, "head"))}
    monkeypatch.setattr(
        "hpcfed.algorithms.base.sgd", lambda fed, client, *_, **__: client.load(head)
    )
    outcome = run("fedclassavg", "--rounds", "1")
    assert toy.differences(outcome.state["head.weight"], head["head.weight"]) == []
