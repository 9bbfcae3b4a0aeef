"""FedAvgM, FedExP and MIFA, whose servers step in another way: what they become in neutral
settings, and two rounds in plain torch.
"""

import pytest
import torch

from hpcfed.algorithms.global_model.fedexp import squared_norm, step_size
from hpcfed.algorithms.global_model.moments import step_with_momentum
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from tests.contract import toy
from tests.contract.referee import LR, TWO, Referee, equal_mean, mean
from tests.contract.test_equalities import SGD, near, run

UNIFORM = ("--algorithm.weighting", "uniform")
ONE_CLASS = (  # per client, all in each round: their updates differ
    *("--clients", "4", "--participation", "1", "--data.train_limit", "48"),
    *("--data.partition", "classes", "--data.classes_per_client", "1"),
)


def statistics(model: Params) -> Params:
    return Params(model).pick(lambda name: "running" in name)


# --- FedAvgM


def test_fedavgm_without_momentum_is_fedavg_to_the_bit():
    ours, theirs = run("fedavgm", "--algorithm.beta", "0"), run("fedavg")
    assert toy.differences(ours.state["x"], theirs.state) == []
    assert toy.differences(ours.scores, theirs.scores) == []


def test_fedavgm_is_the_first_phase_of_reptile_to_the_bit():
    ours = run("fedavgm", "--algorithm.beta", "0.5", "--algorithm.server_lr", "0.7")
    phase = ("--algorithm.first_rounds", "3", "--algorithm.first_lr", "0.7")
    theirs = run("reptile", *phase, "--algorithm.first_momentum", "0.5")
    assert toy.differences(ours.state["x"], theirs.state["x"]) == []
    assert toy.differences(ours.state["v"], theirs.state["m"]) == []


@pytest.mark.parametrize("nesterov, want", [(False, [1, 2.9, 5.61]), (True, [1.9, 4.61, 8.049])])
def test_three_steps_with_momentum_by_hand(nesterov: bool, want: list[float]):
    """Every client returns w + 1."""
    w = v = Params(w=torch.zeros((), dtype=torch.float64))
    models = []
    for _ in range(3):
        w, v = step_with_momentum(w, v, w.map(lambda value: value + 1), 0.9, 1.0, nesterov)
        models.append(w["w"].item())
    assert models == pytest.approx(want)


@pytest.mark.parametrize("nesterov", ["false", "true"])
def test_two_rounds_of_fedavgm_in_plain_torch(nesterov: str):
    referee = Referee("fedavgm", *TWO, "--algorithm.nesterov", nesterov)
    w = dict(referee.initial())
    cohorts = referee.run()
    leaves = [torch.nn.Parameter(v) for v in w.values()]
    server = torch.optim.SGD(leaves, lr=1.0, momentum=0.9, nesterov=nesterov == "true")
    for cohort in cohorts:
        w = Params(zip(w, (v.detach() for v in leaves), strict=True))
        step = w - mean({k: referee.train(k, w) for k in cohort})
        for leaf, slope in zip(leaves, step.values(), strict=True):
            leaf.grad = slope
        server.step()
    w = Params(zip(w, (v.detach() for v in leaves), strict=True))
    assert near(referee.rounds.state.x, w, 1e-6)


# --- FedExP


def test_step_sizes_of_fedexp_by_hand():
    assert step_size(1.0, 1 / 4, 0.0) == 2.0  # four orthogonal updates of length 1
    assert step_size(1.0, 1.0, 0.0) == 1.0  # equal ones
    assert step_size(0.0, 0.0, 0.0) == 1.0  # none
    assert step_size(1.0, 1 / 8, 1 / 8) == 2.0
    assert squared_norm(Params(a=torch.tensor([3.0]), b=torch.tensor([[4.0]]))).tolist() == [25]


def test_fedexp_of_equal_updates_is_fedavg_to_the_bit():
    flags = ("--clients", "1", "--data.train_limit", "30")
    ours, theirs = run("fedexp", *flags), run("fedavg", *flags)
    assert toy.differences(ours.state["x"], theirs.state) == []


def test_fedexp_extrapolates_parameters_and_averages_batch_statistics():
    flags = (*ONE_CLASS, "--rounds", "1", "--models.mix", "small")
    ours, theirs = run("fedexp", *flags, "--algorithm.eps", "0"), run("fedavg", *flags)
    x, w = Params(ours.state["x"]), Params(theirs.state)
    assert toy.differences(statistics(x), statistics(w)) == []
    start = toy.start(Serial(), toy.job("fedavg", *flags)).state
    trained = [n for n in x if "running" not in n]
    step, change = (torch.cat([(v[n] - start[n]).flatten() for n in trained]) for v in (x, w))
    eta = step.norm() / change.norm()
    assert eta > 1.1 and torch.allclose(step, eta * change, rtol=0, atol=1e-5)


def test_two_rounds_of_fedexp_and_its_last_mean_in_plain_torch():
    referee = Referee("fedexp", *TWO, "--algorithm.eps", "0.01", *UNIFORM, *ONE_CLASS)
    w = previous = referee.initial()
    for cohort in referee.run():
        updates = [w - referee.train(k, w) for k in cohort]
        update = (1 / len(cohort)) * sum(updates[1:], updates[0])
        norms = [sum(v.double().square().sum() for v in u.values()) for u in (*updates, update)]
        eta = max(1.0, float(sum(norms[:-1])) / (2 * len(cohort) * (float(norms[-1]) + 0.01)))
        w, previous = w - eta * update, w
    assert eta > 1
    assert near(referee.rounds.state.x, w, 1e-5)
    referee.rounds.finish()
    assert near(referee.rounds.state.x, 0.5 * (w + previous), 1e-5)


# --- MIFA


def test_mifa_of_all_clients_is_fedavg_of_equal_weights():
    flags = (*SGD, "--participation", "1")
    ours, theirs = run("mifa", *flags), run("fedavg", *flags, *UNIFORM)
    assert near(Params(ours.state["x"]), theirs.state, 1e-6)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_mifas_server_has_the_mean_of_all_clients_latest_updates(weighting: str):
    flags = (*SGD, "--rounds", "12", "--algorithm.weighting", weighting)
    outcome = run("mifa", *flags, "--participation", "0.4", "--evaluate.every", "1000")
    g = Params(outcome.state["g"])
    updates = [Params(memory.get("update", g * 0)) for memory in outcome.memory.values()]
    n = [1] * 6 if weighting == "uniform" else toy.SIZES
    assert near(g, mean(dict(enumerate(updates)), n), 1e-5)
    assert max(v.abs().max() for v in g.values()) > 1e-2


def test_mifa_averages_batch_statistics_of_the_cohort():
    flags = ("--rounds", "1", "--models.mix", "small")
    ours, theirs = run("mifa", *flags), run("fedavg", *flags, *UNIFORM)
    assert near(statistics(ours.state["x"]), statistics(theirs.state), 1e-6)
    assert not statistics(ours.state["g"])


def test_two_rounds_of_mifa_in_plain_torch():
    referee = Referee("mifa", *TWO)
    w, table = referee.initial(), {k: referee.initial() * 0 for k in range(6)}
    cohorts = referee.run()
    assert set(cohorts[0]) - set(cohorts[1])  # some are absent in the second round
    for cohort in cohorts:
        table |= {k: (1 / LR) * (w - referee.train(k, w)) for k in cohort}
        w = w - LR * equal_mean(table)
    assert near(referee.rounds.state.x, w, 1e-6)
