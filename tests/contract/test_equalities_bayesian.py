"""FedBE: what it becomes in neutral settings, and what must hold of what it draws."""

import numpy as np
import pytest
import torch

from hpcfed.comm import Serial, spmd
from hpcfed.training.server import recalibrate
from tests.contract import toy
from tests.contract.test_equalities import run

SMALL, MLP = ("--models.mix", "small"), ("--models.mix", "mlp")
SWA = ("--algorithm.server_batch", "8", "--algorithm.swa_start", "2", "--algorithm.swa_every", "3")
VARIANTS = {
    "fedbe by mixtures": ("fedbe", "--algorithm.posterior", "dirichlet", *SWA, *SMALL),
    "fedbe of the authors": ("fedbe", "--preset", "authors", "--local.epochs", "1", *SMALL),
}


@pytest.mark.parametrize("claim", VARIANTS)
def test_ranks_do_not_matter_for_the_variants(claim: str):
    job = toy.job(*VARIANTS[claim], "--rounds", "2", "--algorithm.server_epochs", "2")
    want = toy.run(Serial(), job)
    assert np.isfinite(want.column("train_loss")[want.column("cohort").astype(bool)]).all()
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []


def test_fedbe_without_epochs_of_its_server_is_fedavg():
    ours, theirs = run("fedbe", "--algorithm.server_epochs", "0"), run("fedavg")
    assert toy.differences(ours, theirs) == []


def test_fedbes_samples_without_variance_are_one_model_with_the_public_datas_statistics():
    flags = ("--algorithm.var_scale", "0", *SMALL)
    rounds = toy.start(Serial(), toy.job("fedbe", *flags))
    fed, method, mean = rounds.fed, rounds.algorithm, rounds.state
    ones = mean.map(torch.ones_like)
    one, other = (method.sample(fed, mean, ones, i, 0) for i in (0, 1))
    assert toy.differences(one, other) == []
    assert toy.differences(one, recalibrate(fed, "small", mean, fed.public)) == []
    x, _ = fed.public.batch(np.arange(len(fed.public)))
    seen = torch.nn.functional.conv2d(
        fed.prepare(x), *(mean[f"body.0.{n}"] for n in ("weight", "bias")), padding=1
    )
    assert torch.allclose(one["body.1.running_mean"], seen.mean((0, 2, 3)), atol=1e-5)
    assert (one["body.1.running_var"] > 0).all()
    moved = {n for n in mean if not torch.equal(one[n], mean[n])}
    assert moved and all("running" in name for name in moved)


def test_fedbes_teachers_are_probabilities():
    rounds = toy.start(Serial(), toy.job("fedbe", *MLP))
    p = rounds.algorithm.answer(rounds.fed, rounds.state)
    assert torch.allclose(p.sum(1), torch.ones(len(p)), atol=1e-6) and (p >= 0).all()
