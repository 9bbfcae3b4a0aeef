"""q-FedAvg and AFL, whose servers look at the clients' losses: golden values, what they become in
neutral settings, and two rounds in plain torch.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcfed.algorithms.global_model.qfedavg import step_sizes
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from tests.contract import toy
from tests.contract.referee import LR, TWO, Referee, equal_mean, mean
from tests.contract.test_equalities import FULL, SGD, near, run

UNIFORM = ("--algorithm.weighting", "uniform")


# --- q-FedAvg


@pytest.mark.parametrize("q, want", [(0, 0.15), (1, 0.125), (2, 0.104651)])
def test_steps_of_qfedavg_by_hand(q: float, want: float):
    """L = 10, F = (0.5, 1), gradients (1, 2): changes of 0.1 and 0.2."""
    clients = [(0.5, 0.1), (1.0, 0.2)]
    sizes = [step_sizes(loss, change**2, q, 10.0) for loss, change in clients]
    steps = [scale * change for (scale, _), (_, change) in zip(sizes, clients, strict=True)]
    assert sum(steps) / sum(h for _, h in sizes) == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("q", [0.0, 0.001, 0.5, 1.0, 5.0])
def test_a_client_without_a_loss_has_finite_sizes(q: float):
    scale, h = step_sizes(0.0, 0.0, q, 10.0)
    assert np.isfinite(scale) and np.isfinite(h) and (scale > 0 or q > 0)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_qfedavg_of_power_0_is_fedavg(weighting: str):
    flags = (*SGD, "--models.mix", "small", "--algorithm.weighting", weighting)
    ours, theirs = run("qfedavg", "--algorithm.q", "0", *flags), run("fedavg", *flags)
    assert near(ours.state, theirs.state, 1e-6)


def test_qfedavg_of_equal_losses_steps_along_the_mean_change():
    """Clients with the same data: one of them, three times."""
    flags = (*FULL, "--rounds", "1", "--clients", "1", "--data.train_limit", "30")
    ours, theirs = run("qfedavg", "--algorithm.q", "2", *flags), run("fedavg", *flags)
    start = toy.start(Serial(), toy.job("fedavg", *flags)).state
    a, b = (
        torch.cat([(v[n] - start[n]).flatten() for n in start]) for v in (ours.state, theirs.state)
    )
    assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 1 - 1e-5
    assert a.norm() < b.norm()


@pytest.mark.parametrize("lipschitz", [None, 3.0])
def test_two_rounds_of_qfedavg_in_plain_torch(lipschitz: float | None):
    more = () if lipschitz is None else ("--algorithm.lipschitz", str(lipschitz))
    referee = Referee("qfedavg", *TWO, "--algorithm.q", "2", *more)
    L = lipschitz or 1 / LR
    w = referee.initial()
    for cohort in referee.run():
        steps, total = {}, 0.0
        for k in cohort:
            loss, change = referee.loss(k, w), w - referee.train(k, w)
            g = L * change
            norm = sum(v.double().square().sum().item() for v in g.values())
            total += 2 * loss * norm + L * loss**2
            steps[k] = loss**2 * g
        w = w - (len(cohort) / total) * equal_mean(steps)
    assert near(referee.rounds.state, w, 1e-6)


# --- AFL


def test_afl_of_fixed_weights_is_fedsgd_of_equal_ones():
    flags = (*SGD, "--participation", "1", "--models.mix", "small")
    ours = run("afl", "--algorithm.lambda_lr", "0", *flags)
    theirs = run("fedsgd", *flags, *UNIFORM)
    assert near(Params(ours.state["x"]), theirs.state, 1e-6)


def test_two_rounds_of_afl_and_its_last_mean_in_plain_torch():
    referee = Referee("afl", "--participation", "1", "--algorithm.lambda_lr", "0.7")
    w, lam = referee.initial(), np.full(6, 1 / 6)
    models = {}
    for t, cohort in enumerate(referee.run()):
        assert cohort == [0, 1, 2, 3, 4, 5]
        losses = [referee.loss(k, w) for k in cohort]
        w = w - LR * mean({k: referee.gradient(k, w) for k in cohort}, lam)
        step = lam + 0.7 * np.array(losses)
        shift = next(  # the sum of the positive parts is 1
            s
            for n in range(6, 0, -1)
            for s in [(np.sort(step)[-n:].sum() - 1) / n]
            if np.sort(step)[-n] > s
        )
        lam, models[t] = np.maximum(step - shift, 0), w
    state = referee.rounds.state
    assert near(state.x, w, 1e-6) and state.lam.tolist() == pytest.approx(lam, abs=1e-6)
    assert lam.std() > 0.01
    referee.rounds.finish()
    assert near(referee.rounds.state.x, equal_mean(models), 1e-6)


def test_the_weight_of_one_bad_client_goes_to_1_and_the_others_still_report():
    rounds = toy.start(Serial(), toy.given("afl", *SGD, "--participation", "1", "--rounds", "1"))
    fed, method, still = rounds.fed, rounds.algorithm, 0 * rounds.state.x
    losses = {k: torch.tensor([3.0 if k == 2 else 0.1]) for k in range(6)}
    for _ in range(4):
        rounds.state = method.server(fed, rounds.state, (still, losses), [*range(6)])
    assert rounds.state.lam.tolist() == [0, 0, 1, 0, 0, 0]
    row, _ = rounds.step()
    assert (row["clients/up"] == row["clients/up"][2]).all() and row["clients/up"][2] > 0


def test_afl_may_train_for_several_steps():
    flags = (*SGD, "--participation", "1", "--algorithm.lambda_lr", "0", *TWO)
    ours = run("afl", *flags, "--algorithm.updates", "training")
    theirs = run("fedavg", *flags[:-4], *TWO, *UNIFORM)
    assert near(Params(ours.state["x"]), theirs.state, 1e-6)


def test_an_absent_client_keeps_its_weight_and_the_others_share_the_step():
    rounds = toy.start(Serial(), toy.given("afl", *SGD, "--participation", "1", "--rounds", "1"))
    lam = torch.tensor([0.1, 0.3, 0.2, 0.2, 0.1, 0.1]).double()
    state = replace(rounds.state, lam=lam)
    ones = state.x.map(torch.ones_like)
    sent = [(k, {"step": (k + 1) * ones, "loss": torch.zeros(1)}) for k in (0, 1)]
    mean = rounds.algorithm.aggregate(rounds.fed, state, sent)
    new = rounds.algorithm.server(rounds.fed, state, mean, [0, 1])
    assert near(new.x, state.x + 1.75 * ones, 1e-6) and torch.allclose(new.lam, lam)
