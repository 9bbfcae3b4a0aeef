"""The contract: what must hold for every method of the registry, examined on few runs of each.

`examination.py` says which runs these are. A method needs no line here.
"""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hpcfed.algorithms import ALGORITHMS, load
from hpcfed.comm import Serial
from hpcfed.config.effects import Effects
from hpcfed.core.errors import ConfigError, DivergedError
from hpcfed.engine import decide
from hpcfed.launch.plan.predict import Cluster, Network, predict
from hpcfed.results.trained.from_checkpoint import Saved, from_newest
from tests.contract import toy
from tests.contract.examination import (
    DIVERGED,
    EVALUATED,
    FAILED,
    MOVED,
    STOPPED,
    UNSCORED,
    Examination,
    learned,
    of_cohort,
    without_faults,
)
from tests.contract.models import counted, with_tests
from tests.contract.models import load as load_record
from tests.threads import spmd

each_algorithm = pytest.mark.parametrize("method", ALGORITHMS)


LEARNABLE = (  # three clients with examples of all classes
    *("--clients", "3", "--data.train_limit", "48", "--data.partition", "iid"),
    *("--participation", "1", "--rounds", "4", "--local.batch", "8"),
)
FASTER = {  # neutral settings where those of toy.toml do not serve
    "dsgt": ("--local.lr", "0.05"),
    "fedsgd": ("--local.lr", "0.2"),
    "scaffold": ("--local.lr", "0.1"),
    "fednova": ("--local.lr", "0.1"),
    "qfedavg": ("--algorithm.q", "0.1", "--local.lr", "0.3"),
    "afl": ("--algorithm.lambda_lr", "0.01", "--local.lr", "0.3"),
    "aruba": ("--local.lr", "0.1"),
    "pfedbayes": ("--algorithm.zeta", "0.01"),  # of few examples it weighs as 1 / n
    "ghn": ("--local.lr", "0.0015"),  # one step moves all weights at once
    "waffle": ("--algorithm.kl", "0.01"),  # so too
    "pfedme": ("--algorithm.lam", "1", "--algorithm.eta", "0.5"),
    "pfedknow": ("--algorithm.rate", "0"),  # a model without channels
    "fedgen": ("--algorithm.alpha", "0.1", "--algorithm.beta", "0.1"),  # of so few steps
    "fedtgp": ("--algorithm.lam", "0.1"),  # the prototypes of an untrained network are far away
    "fedorgp": ("--algorithm.lam", "0.1"),
}
# methods whose bytes depend on what is learnt: they announce the most that can be
COMPRESSED = ("fedfomo", "fedkd", "fedktl", "pfedhr", "pfedknow")
# methods whose server gets each upload by itself; those of the others are added up on the way
GATHERED = (
    *("cyclic", "dsgd", "dsgt", "fedamp", "fedgh", "fedgkt", "fedma", "fedorgp", "fedtgp"),
    *("fedfomo", "fedktl", "fedzkt", "fedlaw", "ktpfl", "mocha", "pfedhr", "pfedknow", "pfnm"),
    "tkm",
)
NOTHING_AT_FIRST = ("fedktl",)  # clients receive nothing in the first round
TWO_COHORTS = ("feddane",)  # drawn one after the other; announced is the traffic of who is in both


@pytest.fixture(scope="module", params=ALGORITHMS)
def runs(request, tmp_path_factory) -> Examination:
    """The runs of one method, for all claims; pytest takes the methods one after the other."""
    return Examination(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def gpu_runs(runs: Examination, tmp_path_factory) -> Examination:
    """The runs of which one is on the pretended GPU."""
    if runs.method != "fedsynth":
        return runs
    # it differentiates gradients; there that of a convolution is composed of other operations
    return Examination("fedsynth", tmp_path_factory.mktemp("fedsynth"), ("--models.mix", "mlp"))


def finite(outcome: toy.Outcome) -> bool:
    """Whether every client that trained has a finite loss, and every one with test examples a
    finite score.
    """
    tested = np.array(toy.TESTS[: len(outcome.scores)]) > 0
    return finite_losses(outcome) and np.isfinite(outcome.scores[tested]).all()


def finite_losses(outcome: toy.Outcome) -> bool:
    """Whether every client that trained has a finite loss."""
    trained = outcome.column("examples") > 0
    return np.isfinite(outcome.column("train_loss")[trained]).all()


# --- ranks, stops and failures change no bit


def test_ranks_do_not_matter(runs: Examination):
    assert toy.differences(runs.spread.outcomes[:MOVED], runs.whole.outcomes[:MOVED]) == []


def test_clients_that_move_to_other_ranks_in_mid_run_do_not_matter(runs: Examination):
    assert runs.spread.moved > 0
    after_move = slice(MOVED, FAILED - 1)
    assert toy.differences(runs.spread.outcomes[after_move], runs.whole.outcomes[after_move]) == []


def test_saved_on_three_ranks_and_stopped_on_one_a_run_ends_on_two_to_the_same_bits(
    runs: Examination,
):
    assert bool(runs.stopped.turns) == runs.trains  # else the server's training is begun anew
    assert runs.resumed.owners == (1,)  # rank 0 owns no client
    (got,), want = runs.resumed.outcomes, runs.whole.outcomes[STOPPED - 1]
    assert toy.differences(got, without_faults(want)) == []


def test_a_client_that_fails_is_one_that_drops_out(runs: Examination):
    failed, dropped = (run.outcomes[FAILED - 1] for run in (runs.spread, runs.whole))
    if not runs.trains:  # its one training is the server's
        assert not failed.column("fault").any()
        return
    assert np.flatnonzero(failed.column("fault")).tolist() == [runs.victim[0]]
    message = f"client {runs.victim[0]} leaves the round"
    assert runs.spread.messages.count(message) == 1
    assert toy.differences(without_faults(failed), without_faults(dropped)) == []


def test_neither_evaluation_nor_undo_log_nor_replay_nor_autocast_changes_what_is_learned(
    runs: Examination,
):
    """Nor a change of all messages and its inverse."""
    for plain, evaluated in zip(runs.graphed.outcomes, runs.whole.outcomes, strict=False):
        assert toy.differences(learned(plain), learned(evaluated)) == []
        for column in ("down", "up"):
            assert plain.column(column).tolist() == evaluated.column(column).tolist()


def test_all_tensors_of_a_gpu_run_are_on_the_gpu_and_have_the_same_bits(gpu_runs: Examination):
    """On a pretended one, which computes on the CPU and refuses tensors of the host."""
    want = [of_cohort(outcome) for outcome in gpu_runs.whole.outcomes[:2]]
    assert toy.differences([of_cohort(outcome) for outcome in gpu_runs.away.outcomes], want) == []


def test_no_local_step_waits_for_a_gpu(gpu_runs: Examination):
    solves_on_host = gpu_runs.method == "mocha"
    assert (gpu_runs.away.waits > 0) == solves_on_host


def test_the_next_round_does_not_change_a_checkpoints_copies(runs: Examination):
    """Weights are not copied but shared with the store, which therefore never writes into a vector
    that it keeps.
    """
    before, after = runs.whole.copied
    assert before and before == after


def test_what_a_round_leaves_is_in_the_order_that_a_checkpoint_restores(runs: Examination):
    """Kernels may give other bits for tensors in another memory format."""
    assert runs.whole.formats == []


def test_the_server_makes_a_new_state_and_leaves_the_old_one_as_it_was(runs: Examination):
    before, after = runs.whole.replaced
    assert before == after


def test_a_server_that_writes_into_its_old_state_fails(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(decide, "rehearse", lambda *_: [])  # it refuses such a method of a user
    before, after = Examination("tests.contract.cheats:Overwrites", tmp_path).whole.replaced
    assert before != after


def test_a_method_whose_columns_would_replace_measured_ones_is_refused():
    rounds = toy.start(Serial(), toy.job("tests.contract.cheats:Reports"))
    with pytest.raises(ConfigError, match=r"Reports: its `columns` returns accuracy_pooled, sec"):
        rounds.step()


def test_a_round_without_reports_changes_nothing(runs: Examination):
    if runs.event_based:
        pytest.skip("a round in virtual time waits for those who report")
    before, after = runs.whole.untouched
    assert not after.column("cohort").any() and not after.column("up").any()
    assert toy.differences(after.state, before) == []


def test_global_random_generators_are_untouched(runs: Examination):
    assert toy.differences(*runs.whole.generators) == []


# --- who takes part, and what is counted


def test_clients_outside_the_cohort_keep_what_they_have(runs: Examination):
    for before, after in pairwise(runs.whole.outcomes):
        for k in np.flatnonzero(~after.column("cohort")[0]):
            assert toy.differences(before.weights[k], after.weights[k]) == []


def test_traffic_is_as_announced_and_only_that_of_the_cohort(runs: Examination):
    down, up = map(np.array, runs.whole.announced)
    usual = slice(FAILED - 1)
    reports, cohort = runs.whole.column("reports")[usual], runs.whole.column("cohort")[usual]
    most_reports = 6 if runs.method in TWO_COHORTS else 3
    # in virtual time: perhaps several of one client
    assert ((reports.sum(1) >= 3) & (reports.sum(1) <= most_reports)).all()
    assert ((reports > 0) == cohort).all()
    for column, most in (("down", reports * down), ("up", reports * up)):
        sent = runs.whole.column(column)[usual]
        if runs.method in COMPRESSED + TWO_COHORTS:
            late = int(column == "down" and runs.method in NOTHING_AT_FIRST)
            assert (sent <= most).all() and ((sent > 0) == (reports > 0))[late:].all()
        else:
            assert sent.tolist() == most.tolist()


def test_a_single_example_a_single_class_and_no_test_example_are_no_exceptions(runs: Examination):
    participants = runs.whole.column("cohort").any(0)
    assert participants[0] and participants[1]  # one example, one class
    assert all(map(finite_losses, runs.whole.outcomes))
    assert all(map(finite, runs.whole.outcomes[EVALUATED - 1 :]))
    assert np.isnan(runs.whole.outcomes[-1].scores[5]).all()  # has nothing to be tested on


@pytest.mark.parametrize("method", [m for m in ALGORITHMS if load(m).keeps_stragglers])
def test_partial_work_counts_if_the_method_accepts_it(method: str):
    unit = "steps" if "steps" in load(method).local_defaults else "epochs"
    job = toy.job(method, "--local.stragglers", "1", f"--local.{unit}", "3")
    outcome = toy.run(Serial(), job, rounds=1)
    assert 0 < outcome.column("epochs").sum() < 3 * outcome.column("cohort").sum()
    assert finite(outcome)


@each_algorithm
def test_one_client_is_a_federation(method: str):
    job = toy.job(
        *(method, "--clients", "1", "--data.train_limit", "20", "--models.mix", "small"),
        *("--evaluate.before", "false", "--evaluate.every", "2"),
    )
    assert finite(toy.run(Serial(), job, rounds=2))


# --- learning


@each_algorithm
def test_the_loss_falls(method: str):
    scored = () if method == "central" else UNSCORED  # no client of it trains
    flags = (*LEARNABLE, *FASTER.get(method, ()), *scored)
    try:  # a model without dropout, where the method takes it
        job = toy.job(method, *flags, "--models.mix", "mlp")
    except ConfigError:
        job = toy.job(method, *flags)
    outcome = toy.run(Serial(), job)
    trained = outcome.column("train_loss")
    loss = np.nanmean(outcome.column("loss") if np.isnan(trained).all() else trained, axis=1)
    assert 0 <= loss[-1] < 0.9 * loss[0]  # a sum that went down for ever would be no loss


# --- results


def test_a_saved_model_is_as_accurate_as_the_run_recorded(runs: Examination):
    assert runs.whole
    run = runs.folder / "whole"
    record, cohort = load_record(run), runs.whole.outcomes[-1].column("cohort")[0]
    models = from_newest(run, lambda source: list(Saved(run, source, with_tests()).models()))
    compared = [m for m in models if cohort[m.about.client] or "received" in m.about.counted]
    assert compared
    for model in compared:
        accuracy, recorded = counted(model, record)
        assert accuracy == recorded and not model.training, model.about


def test_the_cluster_demand_of_a_method_in_rounds_follows_from_the_job(runs: Examination):
    asked = runs.whole.demand
    if asked is None:
        pytest.skip("it schedules its clients itself")
    up = runs.whole.announced[1]
    asked_first = [k for ks in asked.cohorts[0] for k in ks]
    sent = [up[k] for k in asked_first]
    assert (4 * asked.values, asked.uploads) == (
        (0, sum(sent)) if runs.method in GATHERED else (max(sent), 0)
    )
    assert np.allclose(asked.train, 1e-3 * np.array(toy.SIZES) * runs.job.local.epochs)
    one, three = (predict(asked, Cluster(nodes, 1, 1, Network(0.0, 1e9))).parts for nodes in (1, 3))
    assert one["train"] == pytest.approx(3 * three["train"]) and one["wait"] == 0 <= three["wait"]


# --- errors


def test_a_loss_that_is_nan_names_rank_client_round_epoch_and_batch(runs: Examination):
    t = r"\d" if runs.event_based else DIVERGED  # there it is the number of the client's task
    words = (
        rf"rank 0 of 1: client \d \(\S+\): the loss is nan in round {t}, epoch 1, batch 1 "
        r"\(lr 0.00[15]\)"
    )
    assert re.search(words, runs.graphed.diverged) and "no checkpoint yet" in runs.graphed.diverged


@each_algorithm
def test_weights_that_explode_end_the_run_with_the_client(method: str):
    flags = ("--local.optimiser", "sgd", "--local.lr", "1e39", "--participation", "1")
    if Effects(toy.given(method)).idle("local.lr"):
        pytest.skip("it has no learning rate")
    job = toy.job(method, *flags, *UNSCORED, "--local.epochs", "2")
    with pytest.raises(DivergedError, match=r"rank \d of 2: client \d"):
        spmd(2, lambda comm: toy.run(comm, job))
