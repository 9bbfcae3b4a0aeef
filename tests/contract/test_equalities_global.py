"""FedDANE, FedDist, FedOpt, FedRS and cyclic training: what they become in neutral settings, and
what must hold of each.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hpcfed.comm import Serial
from hpcfed.core.params import Params
from tests.contract import toy
from tests.contract.test_equalities import FULL, ONE, SGD, near, run
from tests.threads import spmd

UNIFORM = ("--algorithm.weighting", "uniform")
EQUAL = {  # claim: (method, flags), (method that it must equal, flags)
    "feddist all the way is fedavg of equal weights": (
        ("feddist", "--algorithm.eps", "1"),
        ("fedavg", *UNIFORM),
    ),
    "feddist+ws all the way is fedavg": (
        ("feddist", "--algorithm.eps", "1", "--algorithm.weighting", "samples"),
        ("fedavg",),
    ),
    "fedrs that scales nothing is fedavg": (("fedrs", "--algorithm.alpha", "1"), ("fedavg",)),
    "fedrs of one client that has all classes is fedavg": (
        ("fedrs", *ONE, "--algorithm.alpha", "0"),
        ("fedavg", *ONE),
    ),
    "cyclic training of one client is fedavg of that client": (
        ("cyclic", *ONE),
        ("fedavg", *ONE),
    ),
}


@pytest.mark.parametrize("claim", EQUAL)
def test_equal_to_the_bit(claim: str):
    ours, theirs = (run(*words) for words in EQUAL[claim])
    assert toy.differences(ours.state, theirs.state) == []
    for column in ("train_loss", "accuracy", "loss", "examples"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


VARIANTS = {
    "feddane of one set": ("feddane", "--preset", "authors", "--algorithm.mu", "0.1"),
    "fedopt of the authors": ("fedopt", "--preset", "authors", "--algorithm.optimiser", "yogi"),
    "fedrs of the authors": ("fedrs", "--preset", "authors"),
    "cyclic by ids": ("cyclic", "--algorithm.order", "fixed", "--participation", "0.7"),
}


@pytest.mark.parametrize("claim", VARIANTS)
def test_ranks_do_not_matter_for_the_variants(claim: str):
    job = toy.job(*VARIANTS[claim])
    want = toy.run(Serial(), job)
    assert np.isfinite(want.column("train_loss")[want.column("cohort").astype(bool)]).all()
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []


def test_feddist_with_eps_zero_never_changes_its_model():
    rounds = toy.start(Serial(), toy.job("feddist", "--algorithm.eps", "0"))
    before = rounds.state
    rounds.step()
    assert toy.differences(rounds.state, before) == []


def test_feddist_goes_six_tenths_of_the_way_to_the_mean():
    start = toy.start(Serial(), toy.job("feddist")).state
    mean = run("fedavg", *UNIFORM, "--rounds", "1").state
    assert near(run("feddist", "--rounds", "1").state, 0.4 * start + 0.6 * mean, 1e-7)


@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad"])
def test_fedopt_without_adaptation_is_fedavg(rule: str):
    neutral = {"optimiser": rule, "eta": "1e8", "tau": "1e8", "b1": "0", "start": "zero"}
    flags = [word for name, v in neutral.items() for word in (f"--algorithm.{name}", v)]
    ours = run("fedopt", *flags, "--rounds", "1").state
    assert near(Params(ours["x"]), run("fedavg", *UNIFORM, "--rounds", "1").state, 1e-6)


def test_fedopt_averages_batch_statistics_and_does_not_adapt_them():
    def statistics(outcome: toy.Outcome, *path: str) -> Params:
        state = outcome.state[path[0]] if path else outcome.state
        return Params(state).pick(lambda name: "running" in name)

    ours, theirs = run("fedopt", "--rounds", "1"), run("fedavg", *UNIFORM, "--rounds", "1")
    assert toy.differences(statistics(ours, "x"), statistics(theirs)) == []
    assert not any("running" in name for name in ours.state["m"])


def test_fedrs_with_alpha_0_does_not_move_the_rows_of_classes_that_a_client_lacks():
    rounds = toy.start(Serial(), toy.job("fedrs", "--models.mix", "mlp", "--algorithm.alpha", "0"))
    fed, client = rounds.fed, rounds.fed.clients[1]  # has class 2 alone
    fed.participants.begin(0, [1], False)
    sent = rounds.algorithm.local(fed, client, rounds.state, 0).value.terms[0].value
    for name in ("head.weight", "head.bias"):
        changed = (sent[name] != rounds.state[name]).reshape(toy.CLASSES, -1)
        assert not changed[[0, 1, 3]].any(), name
        assert changed[2].any() or name == "head.bias"


def test_fedrs_is_evaluated_with_plain_logits():
    rounds = toy.start(Serial(), toy.job("fedrs", "--models.mix", "mlp", "--algorithm.alpha", "0"))
    client = rounds.fed.clients[1]
    x = torch.zeros(2, *toy.SHAPE)
    scores = rounds.algorithm.predictor(rounds.fed, client, rounds.state)(x)
    assert torch.equal(scores, client.model(x))


def test_feddane_in_one_full_batch_step_goes_down_the_mean_gradient():
    """w - lr (grad F_k + g - grad F_k) is the same for all clients: FedSGD."""
    assert near(run("feddane", *FULL).state, run("fedsgd", *FULL).state, 1e-6)


@pytest.mark.parametrize("mu", ["0", "0.5"])
def test_feddane_of_one_client_is_fedprox(mu: str):
    flags = (*ONE, *SGD, "--algorithm.mu", mu)
    assert near(run("feddane", *flags).state, run("fedprox", *flags).state, 1e-7)


def test_feddanes_gradients_leave_the_received_model_as_it_is():
    rounds = toy.start(Serial(), toy.job("feddane", "--models.mix", "small"))
    fed, client = rounds.fed, rounds.fed.clients[4]
    fed.participants.begin(0, [4], False)
    rounds.algorithm.send_gradient(fed, client, rounds.state, {}, [4], 0)
    assert toy.differences(client.params(), rounds.state) == []  # statistics too


def test_feddanes_two_sets_receive_and_send_only_their_parts():
    job = toy.job("feddane", "--models.mix", "mlp")
    rounds = toy.start(Serial(), job)
    first, second = rounds.algorithm.two_sets(rounds.fed, 0)
    assert first != second and len(first) == len(second) == 3
    outcome, P = toy.outcome(rounds, [rounds.step()[0]]), rounds.fed.shapes().nbytes
    down = [P * ((k in first or k in second) + (k in second)) for k in range(6)]
    up = [P * ((k in first) + (k in second)) for k in range(6)]
    assert outcome.column("down")[0].tolist() == down and outcome.column("up")[0].tolist() == up


def test_feddanes_authors_train_the_clients_that_sent_gradients():
    rounds = toy.start(Serial(), toy.job("feddane", "--preset", "authors"))
    for t in range(3):
        first, second = rounds.algorithm.two_sets(rounds.fed, t)
        assert first == second


def test_a_cycle_visits_every_client_once_and_each_in_another_order():
    rounds = toy.start(Serial(), toy.job("cyclic", "--participation", "0.3"))  # two a round
    visits = [rounds.algorithm.visits(rounds.fed, t) for t in range(6)]
    cycles = [[k for part in visits[i : i + 3] for k in part] for i in (0, 3)]
    assert [sorted(cycle) for cycle in cycles] == [list(range(6))] * 2 and cycles[0] != cycles[1]


def test_cyclic_training_takes_its_steps_one_client_after_the_other():
    """Logistic regression, one full batch a visit: six gradient steps in the order of visits."""
    flags = (*SGD, "--participation", "1", "--local.batch", "1000", "--algorithm.order", "fixed")
    rounds = toy.start(Serial(), toy.job("cyclic", *flags, "--models.mix", "logistic"))
    head = [rounds.state[f"head.{name}"].clone() for name in ("weight", "bias")]
    for client in rounds.fed.clients.values():
        x, y = client.train.batch(np.arange(client.n))
        leaves = [v.requires_grad_() for v in head]
        value = F.cross_entropy(F.linear(rounds.fed.prepare(x).flatten(1), *leaves), y)
        slopes = torch.autograd.grad(value, leaves)
        head = [(v - 0.1 * g).detach() for v, g in zip(leaves, slopes, strict=True)]
    row = rounds.step()[0]
    cells = zip(*(row[f"clients/{name}"] for name in ("work", "down", "up")), strict=True)
    took = [rounds.fed.participants.profiles.seconds(k, *c) for k, c in enumerate(cells)]
    assert row["rounds/virtual_seconds"] == sum(took) > 2 * max(took)
    assert torch.allclose(rounds.state["head.weight"], head[0], rtol=0, atol=1e-6)
    assert row["clients/down"].sum() == row["clients/up"].sum() == 6 * rounds.state.nbytes
