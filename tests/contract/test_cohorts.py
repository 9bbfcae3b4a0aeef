"""The job's choice of cohorts, with methods: bits, bytes, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from hpcfed.algorithms import ALGORITHMS, load
from hpcfed.algorithms.base import RoundBased
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.engine.fault_tolerance.resume import restore
from tests import saving
from tests.contract import toy
from tests.threads import spmd

MLP = ("--models.mix", "mlp", "--rounds", "4", "--evaluate.before", "false")
LOST = ("--system.dropout", "0.3")
LEARNS = ("power-of-choice", "e3cs", "oort")


@pytest.mark.parametrize("by", LEARNS)
def test_a_choice_that_learns_has_the_same_bits_on_any_ranks_and_after_resume(
    by: str, tmp_path: Path
):
    job = toy.job("fedavg", *MLP, *LOST, "--selection.by", by)
    want = toy.run(Serial(), job)
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []
    toy.run(Serial(), job, rounds=2, save=tmp_path)
    again = toy.run(Serial(), job, resume=tmp_path)
    assert toy.differences(again.state, want.state) == []
    assert toy.differences(again.rows, want.rows[2:]) == []


@pytest.mark.parametrize("seed", ["0", "2"])
def test_oort_learns_nothing_in_a_round_in_which_nobody_reports(seed: str, tmp_path: Path):
    flags = ("--selection.by", "oort", "--system.dropout", "0.6", "--participation", "0.34")
    job = toy.job("fedavg", *MLP, *flags, "--seed", seed, "--rounds", "6")
    cohorts = toy.run(Serial(), job).column("cohort")
    assert (cohorts.sum(1) == 0).any()
    alone, again = toy.start(Serial(), job), toy.start(Serial(), job)
    while not alone.over:
        alone.step()
        if alone.t == 4:
            saving.save(alone, tmp_path)
    restore(again, tmp_path)
    while not again.over:
        again.step()
    assert toy.differences(again.fed.choice.to_tree(), alone.fed.choice.to_tree()) == []


@pytest.mark.parametrize("by", ["size", *LEARNS])
def test_another_choice_is_another_cohort(by: str):
    usual = toy.run(Serial(), toy.job("fedavg", *MLP)).column("cohort")
    chosen = toy.run(Serial(), toy.job("fedavg", *MLP, "--selection.by", by)).column("cohort")
    assert (chosen != usual).any() and (chosen.sum(1) == 3).all()


@pytest.mark.parametrize(
    "method, flags",
    [
        ("fedavg", ("--selection.by", "power-of-choice")),
        ("fedavg", ("--system.dropout", "0.7")),
        ("fedprox", ("--algorithm.sampling", "size", "--algorithm.weighting", "uniform")),
        ("fedasync", ()),
    ],
)
def test_the_scores_after_the_end_are_of_the_clients_evaluated_in_the_last_round(
    method: str, flags: tuple[str, ...], tmp_path: Path
):
    """If a round's cohort is evaluated; also of a run that is resumed at its end."""
    cohort = ("--evaluate.clients", "cohort", "--evaluate.received", "false", "--rounds", "2")
    job = toy.job(method, *MLP, *flags, *cohort)
    ended, resumed = toy.start(Serial(), job), toy.start(Serial(), job)
    ended.step()
    row, _ = ended.step()
    saving.save(ended, tmp_path)
    restore(resumed, tmp_path)
    evaluated = np.flatnonzero(row["clients/cohort"]).tolist()
    final = ended.finish()
    assert final["clients"].tolist() == evaluated
    assert toy.differences(resumed.finish(), final) == []


def test_a_run_whose_last_round_has_no_client_has_no_scores_after_the_end():
    cohort = ("--evaluate.clients", "cohort", "--evaluate.received", "false")
    late = ("--system.dropout", "0.99", "--rounds", "1")
    rounds = toy.start(Serial(), toy.job("fedavg", *MLP, *cohort, *late))
    row, _ = rounds.step()
    assert not row["clients/cohort"].any() and rounds.finish() == {}


@pytest.mark.parametrize("by", ["power-of-choice", "oort"])
def test_a_loss_that_is_reported_counts_as_four_bytes(by: str):
    job = toy.job("fedavg", *MLP, "--selection.by", by)
    outcome, fed = toy.run(Serial(), job), toy.start(Serial(), job).fed
    want = (fed.initial().nbytes + 4) * outcome.column("cohort")
    assert (outcome.column("up") == want).all()
    assert fed.participants.announced(0)[1] == fed.initial().nbytes + 4


def test_oort_learns_how_long_the_clients_of_a_round_took():
    devices = ("--system.distribution", "lognormal", "--system.spread", "1")
    rounds = toy.start(Serial(), toy.job("fedavg", *MLP, "--selection.by", "oort", *devices))
    row, _ = rounds.step()
    oort, cohort = rounds.fed.choice.oort, row["clients/cohort"].astype(bool)
    assert oort
    assert np.isnan(oort.seconds[~cohort]).all() and np.isnan(oort.utilities[~cohort]).all()
    assert oort.seconds[cohort].max() == row["rounds/virtual_seconds"]
    assert oort.seconds[cohort].min() < oort.seconds[cohort].max()
    assert (oort.utilities[cohort] >= row["clients/train_loss"][cohort]).all()


def test_fedprox_by_size_is_the_choice_by_size():
    expected = toy.run(
        Serial(),
        toy.job(
            "fedprox", *MLP, "--algorithm.sampling", "size", "--algorithm.weighting", "uniform"
        ),
    )
    of_job = toy.run(
        Serial(),
        toy.job("fedprox", *MLP, "--selection.by", "size", "--algorithm.weighting", "uniform"),
    )
    assert toy.differences(expected, of_job) == []


@pytest.mark.parametrize(
    "flags, message",
    [
        (
            ("fedavg", "--selection.eta", "0.1"),
            "selection.eta = 0.1 has no effect: selection.by = 'uniform'",
        ),
        (("fedavg", "--selection.by", "size", "--participation", "1"), "has no effect if all 6"),
        (("fedasync", "--selection.by", "size"), "fedasync schedules its clients itself"),
        (("cyclic", "--selection.by", "e3cs"), "cyclic schedules its clients itself"),
        (
            ("fedavg", "--selection.by", "power-of-choice", "--selection.candidates", "2"),
            "give a number from 3 to 6",
        ),
    ],
)
def test_a_choice_without_effect_is_refused(flags: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        toy.job(*flags, *MLP)


def test_a_method_with_a_cohort_hook_draws_by_the_choice_or_says_that_it_does_not():
    overriding = {
        n for n in ALGORITHMS if issubclass(load(n), RoundBased) and "cohort" in vars(load(n))
    }
    assert {n for n in overriding if load(n).samples_cohorts} == {
        *("fedprox", "feddane"),
        *("fedcovid", "harmony"),  # in a part of their rounds
    }
