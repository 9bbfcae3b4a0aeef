"""Every method: what evaluation, odd clients and odd cohorts must not do, and what is counted."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from hpcfed.algorithms import ALGORITHMS, load
from hpcfed.comm import Serial
from hpcfed.engine.evaluation import Evaluation
from hpcfed.engine.survival import snapshot
from tests.contract import toy

each_algorithm = pytest.mark.parametrize("method", ALGORITHMS)
FASTER = {  # neutral settings where those of toy.toml do not serve
    "fedsgd": ["--local.lr", "0.2"],
    "scaffold": ["--local.lr", "0.1"],
    "pfedme": ["--algorithm.lam", "1", "--algorithm.eta", "0.5"],
    "pfedbayes": ["--algorithm.zeta", "0.01"],  # of few examples it weighs as 1 / n
    "fedproto": [
        "--algorithm.lam",
        "0.1",
    ],  # in the first round there are no prototypes, so no term
}


def learned(outcome: toy.Outcome) -> list:
    """What training leaves, without what evaluation adds."""
    return [outcome.state, outcome.weights, outcome.memory, outcome.column("train_loss")]


def finite(outcome: toy.Outcome) -> bool:
    """Whether every client that trained has a finite loss, and every one with test examples a
    score.
    """
    trained = outcome.column("examples") > 0
    tested = np.array(toy.TESTS[: len(outcome.scores)]) > 0
    return (
        np.isfinite(outcome.column("train_loss")[trained]).all()
        and np.isfinite(outcome.scores[tested]).all()
    )


@each_algorithm
def test_evaluation_changes_nothing(method: str):
    often = toy.job(method, "--evaluate.common", "true", "--local.keep_optimiser", "true")
    never = toy.job(
        method,
        "--evaluate.every",
        "1000",
        "--evaluate.before",
        "false",
        "--local.keep_optimiser",
        "true",
    )
    assert (
        toy.differences(learned(toy.run(Serial(), often)), learned(toy.run(Serial(), never))) == []
    )


@each_algorithm
def test_evaluating_a_cohort_before_the_ranks_wait_for_one_another_changes_nothing(
    method: str, monkeypatch
):
    early = toy.run(Serial(), toy.job(method))
    monkeypatch.setattr(Evaluation, "independent", False)
    assert toy.differences(early, toy.run(Serial(), toy.job(method))) == []


@each_algorithm
def test_two_runs_are_the_same_and_other_seeds_differ(method: str):
    runs = [toy.run(Serial(), toy.job(method, "--seed", seed)) for seed in ("0", "0", "1")]
    assert toy.differences(runs[0], runs[1]) == []
    assert toy.differences(learned(runs[0]), learned(runs[2])) != []


@each_algorithm
def test_the_traced_engine_has_the_bits_of_the_eager_one(method: str):
    eager, traced = (
        toy.run(Serial(), toy.job(method, "--training.engine", engine))
        for engine in ("eager", "traced")
    )
    assert toy.differences(eager, traced) == []


@each_algorithm
def test_the_loss_falls(method: str):
    job = toy.job(
        method,
        "--participation",
        "1",
        "--rounds",
        "6",
        "--local.epochs",
        "2",
        *FASTER.get(method, []),
    )
    outcome = toy.run(Serial(), job)
    trained = outcome.column("train_loss")
    nobody = np.isnan(trained).all()  # central: no client trains
    loss = np.nanmean(outcome.column("loss") if nobody else trained, axis=1)
    assert loss[-1] < 0.9 * loss[0]


@each_algorithm
def test_global_random_generators_are_untouched(method: str):
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    toy.run(Serial(), toy.job(method, "--rounds", "1"))
    after = torch.random.get_rng_state(), np.random.get_state()[1], random.getstate()
    assert toy.differences(before, after) == []


@pytest.mark.parametrize(
    "flags", [("--participation", "1"), ("--participation", "1", "--local.batch", "1")]
)
@each_algorithm
def test_a_single_example_a_single_class_and_a_batch_of_one_are_no_exceptions(
    method: str, flags: tuple[str, ...]
):
    outcome = toy.run(Serial(), toy.job(method, "--rounds", "1", *flags))
    assert finite(outcome)
    assert np.isnan(outcome.scores[5]).all()  # has nothing to be tested on


@each_algorithm
def test_one_client_is_a_federation(method: str):
    job = toy.job(method, "--clients", "1", "--data.train_limit", "20", "--models.mix", "small")
    assert finite(toy.run(Serial(), job))


@each_algorithm
def test_a_round_in_which_nobody_reports_changes_nothing(method: str):
    job = toy.job(method, "--local.stragglers", "1", "--local.epochs", "3")
    rounds = toy.start(Serial(), job)
    before = rounds.algorithm.init(rounds.fed)
    after = toy.outcome(rounds, [rounds.step()[0]])
    if load(method).keeps_stragglers:
        assert finite(after) and 0 < after.column("epochs").sum() < 3 * after.column("cohort").sum()
    else:
        assert toy.differences(after.state, before) == []
        assert not after.column("examples").any() and not after.column("up").any() and finite(after)


@each_algorithm
def test_clients_outside_the_cohort_keep_what_they_have(method: str):
    rounds = toy.start(Serial(), toy.job(method))
    outcomes = [toy.outcome(rounds, [rounds.step()[0]]) for _ in range(3)]
    for before, after in pairwise(outcomes):
        for k in np.flatnonzero(~after.column("cohort")[0]):
            assert toy.differences(before.weights[k], after.weights[k]) == []


@each_algorithm
def test_traffic_is_what_the_method_announces_and_that_of_the_cohort_alone(method: str):
    rounds = toy.start(Serial(), toy.job(method))
    down, up = np.array([rounds.algorithm.traffic(rounds.fed, k) for k in range(rounds.fed.K)]).T
    outcome = toy.outcome(rounds, [rounds.step()[0] for _ in range(3)])
    reports = outcome.column("reports")  # event-based methods: perhaps several of one client
    assert reports.sum(1).tolist() == [3, 3, 3]
    assert ((reports > 0) == outcome.column("cohort")).all()
    assert outcome.column("down").tolist() == (reports * down).tolist()
    assert outcome.column("up").tolist() == (reports * up).tolist()


@each_algorithm
def test_what_was_copied_for_a_checkpoint_is_not_changed_by_the_next_round(method: str):
    """Weights are not copied but shared with the store, which therefore never writes into a vector
    that it keeps.
    """
    rounds = toy.start(Serial(), toy.job(method, "--local.keep_optimiser", "true"))
    rounds.step()
    taken = snapshot.take_snapshot(rounds).items
    before = dict(toy.leaves(taken))
    rounds.step()
    assert dict(toy.leaves(taken)) == before
