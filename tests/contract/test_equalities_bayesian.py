"""FedBE and pFedBayes: what they become in neutral settings, and what must hold of their draws."""

import math

import numpy as np
import pytest
import torch

from hpcfed.algorithms.bayesian import gaussian
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.training.server import recalibrate
from tests.contract import toy
from tests.contract.test_equalities import near, run
from tests.threads import spmd

SMALL, MLP = ("--models.mix", "small"), ("--models.mix", "mlp")
SWA = ("--algorithm.server_batch", "8", "--algorithm.swa_start", "2", "--algorithm.swa_every", "3")
VARIANTS = {
    "fedbe by mixtures": ("fedbe", "--algorithm.posterior", "dirichlet", *SWA, *SMALL),
    "pfedbayes of the authors": ("pfedbayes", "--preset", "authors", "--algorithm.beta", "0.5"),
    "fedbe of the authors": ("fedbe", "--preset", "authors", "--local.epochs", "1", *SMALL),
}


@pytest.mark.parametrize("claim", VARIANTS)
def test_ranks_do_not_matter_for_the_variants(claim: str):
    few = ("--algorithm.server_epochs", "2") if "fedbe" in claim else ("--local.steps", "3")
    job = toy.job(*VARIANTS[claim], "--rounds", "2", *few)
    want = toy.run(Serial(), job)
    assert np.isfinite(want.column("train_loss")[want.column("cohort").astype(bool)]).all()
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []


def test_fedbe_without_epochs_of_its_server_is_fedavg():
    ours, theirs = run("fedbe", "--algorithm.server_epochs", "0"), run("fedavg")
    assert toy.differences(ours, theirs) == []


def test_fedbes_samples_without_variance_are_one_model_with_the_public_datas_statistics():
    flags = ("--algorithm.std_scale", "0", *SMALL)
    rounds = toy.start(Serial(), toy.job("fedbe", *flags))
    fed, method, mean = rounds.fed, rounds.algorithm, rounds.state
    ones = mean.map(torch.ones_like)
    one, other = (method.sample(fed, mean, ones, i, 0) for i in (0, 1))
    assert toy.differences(one, other) == []
    assert toy.differences(one, recalibrate(fed, "small", mean, fed.public)) == []
    x, _ = fed.public.batch(np.arange(len(fed.public)))
    output = torch.nn.functional.conv2d(
        fed.prepare(x), *(mean[f"body.0.{n}"] for n in ("weight", "bias")), padding=1
    )
    assert torch.allclose(one["body.1.running_mean"], output.mean((0, 2, 3)), atol=1e-5)
    assert (one["body.1.running_var"] > 0).all()
    changed = {n for n in mean if not torch.equal(one[n], mean[n])}
    assert changed and all("running" in name for name in changed)


def test_fedbe_of_one_client_teaches_the_mean_its_own_predictions():
    """The only teachers are one model: unsharpened, there is nothing to learn."""
    flags = ("--clients", "1", "--data.train_limit", "30", *MLP)
    alone = ("--algorithm.samples", "0", "--algorithm.sharpen", "1")
    ours, theirs = run("fedbe", *alone, *flags).state, run("fedavg", *flags).state
    assert near(Params(ours), Params(theirs), 1e-5)
    sharp = run("fedbe", "--algorithm.samples", "0", "--algorithm.server_lr", "0.1", *flags).state
    assert not near(Params(sharp), Params(theirs), 1e-5)


def test_fedbes_teachers_are_probabilities():
    rounds = toy.start(Serial(), toy.job("fedbe", *MLP))
    p = rounds.algorithm.answer(rounds.fed, rounds.state)
    assert torch.allclose(p.sum(1), torch.ones(len(p)), atol=1e-6) and (p >= 0).all()


POINT = ("--algorithm.eps_std", "0", "--algorithm.inner_steps", "1")  # no distribution


def test_pfedbayes_without_noise_and_divergence_trains_as_fedavgs_clients_do():
    flags = ("--rounds", "1", *SMALL)
    ours = run("pfedbayes", *POINT, "--algorithm.zeta", "0", *flags)
    assert (
        toy.differences(ours.column("train_loss"), run("fedavg", *flags).column("train_loss")) == []
    )
    start = toy.start(Serial(), toy.job("pfedbayes", *SMALL)).state
    fixed = [name for name in start if "running" not in name]
    assert all(torch.equal(ours.state[name], start[name]) for name in fixed)  # nothing pulls it


def personal_after(zeta: str, shift: float) -> Params:
    """Client 4's means after two rounds, before the second of which the common ones move so far."""
    flags = ("--algorithm.zeta", zeta, "--participation", "1", *MLP)
    rounds = toy.start(Serial(), toy.job("pfedbayes", *flags))
    rounds.step()
    rounds.state = rounds.state.map(lambda v: v + shift)
    rounds.step()
    return rounds.fed.clients[4].params()


def test_pfedbayes_personal_part_heeds_the_common_one_by_its_divergence_alone():
    assert toy.differences(personal_after("0", 0.0), personal_after("0", 0.5)) == []
    assert toy.differences(personal_after("1", 0.0), personal_after("1", 0.5)) != []


def test_pfedbayes_divergence_pulls_both_distributions_towards_each_other():
    method = toy.job("pfedbayes", *MLP, "--algorithm.zeta", "6").algorithm
    q, p = ((torch.tensor([m]), torch.tensor([-3.0])) for m in (1.0, 0.0))
    value, (of_mu, of_rho, of_common, of_deviation) = gaussian.pull(method.zeta, 3, q, p)
    s = torch.nn.functional.softplus(torch.tensor(-3.0))
    assert value.item() == pytest.approx(float(1 / s**2), rel=1e-5)  # 6 / 3 * 1 / (2 s^2)
    assert of_mu.item() == -of_common.item() == pytest.approx(float(2 / s**2), rel=1e-5)
    assert of_rho.abs().item() < 1e-3 and of_deviation.item() < 0  # p widens to reach q


def test_pfedbayes_divides_its_divergence_by_the_clients_examples_or_a_number():
    rounds = toy.start(Serial(), toy.job("pfedbayes", *MLP))
    q, p = ((torch.tensor([m]), torch.tensor([-3.0])) for m in (1.0, 0.0))
    client = rounds.fed.clients[4]
    personal, (own_mu, *_) = rounds.algorithm.pull(client, q, p)
    preset = toy.job("pfedbayes", *MLP, "--preset", "authors").algorithm
    assert preset.divisor == 2000  # zeta / 20 beside a sum over 100 examples
    theirs, (their_mu, *_) = preset.pull(client, q, p)
    assert (personal / theirs).item() == pytest.approx(2000 / client.n)
    assert (own_mu / their_mu).item() == pytest.approx(2000 / client.n)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--algorithm.zeta", "0", "--algorithm.beta", "0.5"), "zeta = 0"),
        (("--algorithm.zeta", "0", "--algorithm.weighting", "samples"), "zeta = 0"),
        (("--algorithm.beta", "0", "--algorithm.weighting", "samples"), "beta = 0"),
    ],
)
def test_pfedbayes_refuses_options_of_a_common_distribution_that_never_moves(flags, why):
    with pytest.raises(ConfigError, match=why):
        toy.given("pfedbayes", *MLP, *flags)


def test_pfedbayes_server_averages_rho_and_goes_beta_of_the_way():
    """Not sigma: of rho 1 and 3 the mean is 2."""
    method = toy.job("pfedbayes", *MLP, "--algorithm.beta", "0.5").algorithm
    old, mean = (Params({"rho/w": torch.tensor(v), "w": torch.tensor(v)}) for v in (4.0, 2.0))
    assert {name: float(v) for name, v in method.server(None, old, mean, []).items()} == {
        "rho/w": 3,
        "w": 3,
    }


def test_pfedbayes_sends_two_values_for_each_parameter_and_keeps_deviations_positive():
    rounds = toy.start(Serial(), toy.job("pfedbayes", *SMALL, "--participation", "1"))
    outcome = toy.outcome(rounds, [rounds.step()[0] for _ in range(2)])
    layout = rounds.fed.store.layout("small")
    want = 4 * (sum(map(math.prod, layout.shapes)) + layout.n_params)
    assert (outcome.column("down") == want).all() and (outcome.column("up") == want).all()
    for memory in outcome.memory.values():
        assert (torch.nn.functional.softplus(memory["rho"]) > 0).all()
