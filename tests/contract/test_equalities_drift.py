"""FedNova, FedDyn, MOON, Ditto: what they become in neutral settings, and their steps by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hpcfed.algorithms.global_model.fednova import count_gradients
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.engine.rounds import Rounds
from hpcfed.training.local import sgd
from tests.contract import toy
from tests.contract.test_equalities import near, run

ALL = ("--participation", "1")
MLP = ("--models.mix", "mlp")
UNIFORM = ("--algorithm.weighting", "uniform")
SGD = ("--local.optimiser", "sgd", "--local.lr", "0.1")


def begun(method: str, *flags: str) -> Rounds:
    return toy.start(Serial(), toy.job(method, *flags))


@pytest.mark.parametrize("words", [("moon", "--algorithm.mu", "0"), ("ditto",)])
def test_the_global_model_is_fedavgs_to_the_bit(words: tuple[str, ...]):
    ours, theirs = run(*words), run("fedavg")
    assert toy.differences(ours.state, theirs.state) == []
    for column in ("accuracy_before", "loss_before", "down", "up"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


def test_fednova_of_equally_many_steps_is_fedavg():
    for more in ((), ("--local.momentum", "0.5"), ("--local.batch", "40")):
        flags = (*SGD, *MLP, *more, "--local.steps", "3")
        ours = toy.run(Serial(), toy.given("fednova", *flags)).state
        theirs = toy.run(Serial(), toy.given("fedavg", *flags)).state
        assert near(ours, theirs, 1e-6)


def test_gradients_of_an_update_are_counted_by_hand():
    assert count_gradients(3) == 3
    rho, tau = 0.5, 3
    closed = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    assert count_gradients(tau, momentum=rho) == closed == 4.25  # 1 + 1.5 + 1.75
    assert count_gradients(2, shrink=0.1) == pytest.approx(1.9)  # 1 * 0.9 + 1
    assert count_gradients(0) == 0


@pytest.mark.parametrize(("steps", "want"), [(5, 11.66), (30, 16.06)])
def test_gradients_are_counted_if_the_proximal_term_passes_through_momentum(steps, want):
    """An update of torch's SGD on gradients of 1, divided by the learning rate."""
    lr, mu, rho = 0.1, 0.5, 0.9
    w = torch.zeros((), dtype=torch.float64, requires_grad=True)
    descent = torch.optim.SGD([w], lr, momentum=rho)
    for _ in range(steps):
        descent.zero_grad()
        (w + mu / 2 * w**2).backward()
        descent.step()
    count = count_gradients(steps, rho, lr * mu)
    assert count == pytest.approx(-w.item() / lr, rel=1e-12)
    assert count == pytest.approx(want, abs=0.005)


def test_fednovas_server_weighs_updates_by_their_steps(monkeypatch: pytest.MonkeyPatch):
    def moved(fed, client, *_: object, **__: object) -> int:
        client.skeleton.flat.sub_(client.id + 1.0)  # updates 1 and 2
        return (1, 3)[client.id]

    monkeypatch.setattr("hpcfed.algorithms.base.sgd", moved)
    two = ("--clients", "2", "--data.train_limit", "20", *MLP, *ALL, *UNIFORM)
    rounds = begun("fednova", *two)
    before = rounds.state
    rounds.step()
    want = before.map(lambda v: v - (1 + 2 / 3))  # tau = (1, 3), p = (1/2, 1/2)
    assert near(rounds.state, want, 1e-5)


def test_a_mean_of_updates_of_momentum_is_exact_for_one_client():
    flags = ("--clients", "1", "--data.train_limit", "30", *MLP, *SGD, "--local.momentum", "0.9")
    ours = toy.run(Serial(), toy.given("fednova", *flags, "--algorithm.mu", "0.5")).state
    theirs = toy.run(Serial(), toy.given("fedprox", *flags, "--algorithm.mu", "0.5")).state
    assert near(ours, theirs, 1e-5)  # divided and multiplied by the same number


def test_fednova_refuses_optimisers_whose_steps_it_cannot_count():
    with pytest.raises(ConfigError, match="fednova needs SGD"):
        toy.job("fednova", "--local.optimiser", "adam")
    flags = (*SGD, "--local.momentum", "0.5", "--local.keep_optimiser", "true")
    with pytest.raises(ConfigError, match="fednova needs updates of a round's own gradients"):
        toy.given("fednova", *flags)
    overshot = (*SGD, "--local.momentum", "0.99", "--algorithm.mu", "9")
    with pytest.raises(ConfigError, match=r"mu = 9.* times after 6 steps\n.* set a smaller mu"):
        toy.given("fednova", *overshot)


ALPHA = ("--algorithm.alpha", "0.5")


def test_feddyns_first_round_goes_twice_as_far_as_fedprox():
    flags = (*ALL, "--rounds", "1", "--models.mix", "mlp", *SGD)
    start = begun("feddyn", *flags, *ALPHA).state.x
    ours = run("feddyn", *flags, *ALPHA)
    theirs = run("fedprox", *flags, *UNIFORM, "--algorithm.mu", "0.5").state
    assert near(Params(ours.state["x"]), 2 * Params(theirs) - start, 1e-5)
    assert (
        toy.differences(
            ours.column("train_loss"),
            run("fedprox", *flags, *UNIFORM, "--algorithm.mu", "0.5").column("train_loss"),
        )
        == []
    )


def test_feddyns_correction_is_the_mean_of_the_clients_corrections_if_all_take_part():
    rounds = begun("feddyn", *ALL, *MLP, *ALPHA)
    for _ in range(3):
        rounds.step()
    duals = [Params(c.memory["dual"]) for c in rounds.fed.clients.values()]
    mean = (1 / len(duals)) * sum(duals[1:], duals[0])
    assert near(rounds.state.h, mean, 1e-5)


@pytest.mark.parametrize(
    ("weighting", "participation"), [("uniform", "1"), ("uniform", "0.5"), ("samples", "0.5")]
)
def test_feddyn_reaches_the_optimum_of_all_clients_and_fedavg_does_not(
    weighting: str, participation: str, monkeypatch: pytest.MonkeyPatch
):
    """Also where two of three clients take part in a round, with weights by examples."""
    curvature, optimum = np.array([1.0, 4.0, 0.5]), np.array([3.0, -1.0, 2.0])

    def solve(fed, client, t, loss, **_: object) -> int:
        """The exact minimum of c/2 (w - b)^2 - g w + alpha/2 (w - w_t)^2, in every weight."""
        c, b, alpha = curvature[client.id], optimum[client.id], 0.5
        _, anchor, dual = loss.args
        client.load({n: (c * b + dual[n] + alpha * anchor[n]) / (c + alpha) for n in dual})
        return 1

    three = ("--clients", "3", "--data.train_limit", "24", "--models.mix", "logistic")
    sizes = ("--data.partition", "quantity", "--data.spread", "1")
    how = ("--participation", participation, "--algorithm.weighting", weighting)
    quick = ("--rounds", "150", "--evaluate.every", "1000", "--evaluate.before", "false")
    monkeypatch.setattr("hpcfed.algorithms.global_model.feddyn.sgd", solve)
    rounds = begun("feddyn", *three, *sizes, *how, *quick, *ALPHA)
    n = np.array(rounds.fed.sizes) if weighting == "samples" else np.ones(3)
    best = float((n * curvature * optimum).sum() / (n * curvature).sum())
    while rounds.t < 150:
        rounds.step()
    assert all(
        torch.allclose(v, torch.full_like(v, best), atol=1e-4) for v in rounds.state.x.values()
    )
    assert abs((n * optimum).sum() / n.sum() - best) > 1  # where means of local minima stay


def test_moons_first_round_pulls_and_pushes_equally():
    flags = (*MLP, *SGD, "--rounds", "1", "--local.steps", "1")
    ours, theirs = run("moon", *flags), run("fedavg", *flags)
    assert near(ours.state, theirs.state, 1e-6)  # near is far: the gradient is 0
    trained = theirs.column("cohort")[0].astype(bool)
    apart = (ours.column("train_loss") - theirs.column("train_loss"))[0][trained]
    assert np.allclose(apart, np.log(2), atol=1e-6)


def test_moons_previous_model_is_the_clients_own_of_its_last_round():
    rounds = begun("moon", *ALL, *MLP)
    sent = {}
    local = type(rounds.algorithm).local

    def noted(self, fed, client, state, t):
        part = local(self, fed, client, state, t)
        sent[client.id] = client.skeleton.flat.clone()
        return part

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(rounds.algorithm).__mro__[1], "local", noted)
        rounds.step()
    for k, client in rounds.fed.clients.items():
        assert torch.equal(client.memory["previous"], sent[k])


def test_ditto_without_its_term_trains_alone_from_the_servers_first_model():
    rounds = begun("ditto", *ALL, "--algorithm.lam", "0", "--models.mix", "mlp")
    initial = rounds.state
    for _ in range(2):
        rounds.step()
    alone = begun("local", *ALL, "--models.mix", "mlp")
    fed = alone.fed
    for k, client in fed.clients.items():
        client.load(initial)
        for t in range(2):
            fed.participants.begin(t, list(range(fed.K)), False)
            loss = lambda model, x, y: F.cross_entropy(model(x), y)  # noqa: E731
            sgd(fed, client, t, loss, phase="personal")
        assert toy.differences(client.params(), rounds.fed.clients[k].params()) == []


def test_a_ditto_step_with_eta_lam_of_one_starts_from_the_global_model():
    flags = ("--local.optimiser", "sgd", "--local.lr", "0.5", "--algorithm.lam", "2")
    rounds = begun("ditto", *ALL, *MLP, *flags, "--local.batch", "100")
    rounds.step()
    w, client = rounds.state, rounds.fed.clients[4]
    weights = client.params()
    x, y = client.train.batch(np.arange(client.n))
    client.skeleton.zero_grad()
    F.cross_entropy(client.model(rounds.fed.prepare(x)), y).backward()
    slope = {name: p.grad.clone() for name, p in client.model.named_parameters()}
    client.skeleton.zero_grad()
    rounds.step()
    got = client.params()
    assert near(got, Params({n: w[n] - 0.5 * slope[n] for n in got}), 1e-5)
    assert not near(got, weights, 1e-4)
