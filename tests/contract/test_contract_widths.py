"""Methods for sub-models: their laws where widths differ, and FedAvg where they do not."""

from functools import cache

import numpy as np
import pytest

from hpcfed.algorithms import ALGORITHMS, load
from hpcfed.clients import client
from hpcfed.comm import Serial
from hpcfed.core.architecture import Architecture
from hpcfed.core.errors import ConfigError
from tests.contract import toy
from tests.contract.examination import Examination
from tests.contract.test_contract import (  # noqa: F401, these claims are examined here too
    test_clients_that_move_to_other_ranks_in_mid_run_do_not_matter,
    test_neither_evaluation_nor_undo_log_nor_replay_nor_autocast_changes_what_is_learned,
    test_ranks_do_not_matter,
    test_saved_on_three_ranks_and_stopped_on_one_a_run_ends_on_two_to_the_same_bits,
)

WIDTHS = ("--models.widths", "1,0.5,0.25")
METHODS = [name for name in ALGORITHMS if load(name)().accepts == "widths"]
STATIC = [name for name in METHODS if "batch_norm" in load(name).model_fields]
VARIANTS = {  # name: method and flags; beside the contract, in which their clients have widths
    "heterofl, dynamic": ("heterofl", *WIDTHS, "--algorithm.assignment", "dynamic"),
    "fedrolex, dynamic": ("fedrolex", *WIDTHS, "--algorithm.assignment", "dynamic"),
    "heterofl, aggregate": (
        *("heterofl", *WIDTHS),
        *("--algorithm.batch_norm", "aggregate", "--algorithm.mask", "none"),
    ),
    "feddropout, shared": ("feddropout", *WIDTHS, "--algorithm.shared_windows", "true"),
    "fjord, kd": ("fjord", *WIDTHS, "--algorithm.kd", "true"),
    "narrow clients only": ("fedrolex", "--models.widths", "0.5,0.25"),
    "narrow nests only": ("fjord", "--models.widths", "0.5,0.25"),
}
KINDS = {**{name: (name, *WIDTHS) for name in METHODS}, **VARIANTS}
each_variant = pytest.mark.parametrize("variant", KINDS)
each_method = pytest.mark.parametrize("method", METHODS)
FREE = ("--algorithm.batch_norm", "aggregate", "--algorithm.clip", "0")
PLAIN = {  # flags that leave nothing of a method but its windows
    "heterofl": ("--algorithm.mask", "none", *FREE),
    "fedrolex": ("--algorithm.mask", "none", *FREE),
    "feddropout": ("--algorithm.weighting", "uniform", *FREE),
    "fjord": ("--algorithm.weighting", "uniform"),
}
ALL = ("--participation", "1", "--evaluate.common", "true", "--evaluate.received", "true")


@pytest.fixture(scope="module", params=VARIANTS)
def runs(request, tmp_path_factory) -> Examination:
    """The runs of one variant, for the claims that are imported above."""
    method, *flags = VARIANTS[request.param]
    return Examination(method, tmp_path_factory.mktemp("widths"), tuple(flags))


def job(variant: str, *flags: str):
    method, *width_flags = KINDS[variant]
    return toy.job(method, *width_flags, *flags)


UNSEEN = ("--rounds", "2", "--evaluate.every", "1000", "--evaluate.before", "false")


def test_drawn_widths_stay_where_a_rank_does_not_keep_its_client_objects(monkeypatch):
    """Of thousands of clients it keeps the cohort's alone."""
    flags = ("--models.widths", "1,0.5,0.25", "--algorithm.assignment", "dynamic")
    job = toy.job("heterofl", *flags, *UNSEEN, "--participation", "1")
    want = toy.run(Serial(), job)
    monkeypatch.setattr(client, "MADE", 3)
    assert toy.differences(toy.run(Serial(), job), want) == []


@each_variant
def test_the_loss_falls_and_all_is_finite(variant: str):
    longer = ("--participation", "1", "--rounds", "4", "--local.epochs", "2", "--local.lr", "0.02")
    longer += ("--evaluate.before", "false", "--evaluate.every", "4")
    outcome = toy.run(Serial(), job(variant, *longer))
    loss = outcome.column("train_loss").mean(1)
    assert 0 <= loss[-1] < 0.9 * loss[0] and np.isfinite(outcome.scores[:5]).all()


@pytest.mark.parametrize("variant", [name for name in KINDS if "dynamic" not in name])
def test_traffic_is_as_announced_and_falls_with_the_width(variant: str):
    rounds = toy.start(Serial(), job(variant, "--participation", "1"))
    plan = np.array([rounds.algorithm.traffic(rounds.fed, k) for k in range(6)]).T
    outcome = toy.outcome(rounds, [rounds.step()[0]])
    assert outcome.column("down")[0].tolist() == plan[0].tolist()
    assert outcome.column("up")[0].tolist() == plan[1].tolist()
    assert plan[0][0] > plan[0][1] and plan[0][0] == plan[0][len(set(KINDS[variant][2].split(",")))]


def test_a_client_with_drawn_widths_sends_at_most_the_bytes_of_the_widest():
    rounds = toy.start(Serial(), job("heterofl, dynamic", "--participation", "1", "--rounds", "6"))
    most = rounds.algorithm.traffic(rounds.fed, 1)[0]
    outcome = toy.outcome(rounds, [rounds.step()[0] for _ in range(6)])
    assert len(set(outcome.column("down")[:, 1])) > 1 and outcome.column("down").max() == most


def test_the_server_has_the_full_model_and_each_width_is_evaluated():
    rounds = toy.start(
        Serial(), job("heterofl", "--models.widths", "0.5,0.25", "--evaluate.common", "true")
    )
    row = rounds.step()[0]
    assert Architecture.parse(rounds.fed.pooled().architecture).width == 1
    wide = toy.start(Serial(), toy.job("fedavg")).state
    assert {n: v.shape for n, v in rounds.state.weights.items()} == {
        n: v.shape for n, v in wide.items()
    }
    names = [name for name in row if name.startswith("rounds/accuracy_common")]
    assert sorted(names) == [f"rounds/accuracy_common{width}" for width in ("", "@0.25", "@0.5")]
    assert all(0 <= row[name] <= 1 for name in names)


@cache
def fedavg(*flags: str) -> toy.Outcome:
    return toy.run(Serial(), toy.job("fedavg", "--algorithm.weighting", "uniform", *flags))


@pytest.mark.parametrize("mix", ["small", "cnn", "logistic"])
@each_method
def test_with_all_widths_1_it_is_fedavg(method: str, mix: str):
    flags = (*ALL, "--models.mix", mix, "--rounds", "2")  # windows roll in the second
    ours = toy.run(Serial(), toy.job(method, *PLAIN[method], *flags))
    theirs = fedavg(*flags)
    assert toy.differences(ours.state["weights"], theirs.state) == []
    assert (
        toy.differences(
            [ours.rows, ours.scores, ours.memory], [theirs.rows, theirs.scores, theirs.memory]
        )
        == []
    )


def test_fjord_with_one_width_weighs_by_examples_as_fedavg_does():
    ours, theirs = (toy.run(Serial(), toy.job(name, *ALL)) for name in ("fjord", "fedavg"))
    assert toy.differences(ours.state["weights"], theirs.state) == []


def test_the_first_round_of_fedrolex_is_heterofl_and_without_rolling_all_are():
    same = (*WIDTHS, "--evaluate.before", "false")
    once = [
        toy.run(Serial(), toy.job(m, *same, "--rounds", "1")).state["weights"]
        for m in ("heterofl", "fedrolex")
    ]
    assert toy.differences(*once) == []
    cases = (("heterofl", ()), ("fedrolex", ("--algorithm.roll_step", "0")), ("fedrolex", ()))
    plain = [
        toy.run(Serial(), toy.job(m, *same, *PLAIN[m], *flags)).state["weights"]
        for m, flags in cases
    ]
    assert toy.differences(plain[0], plain[1]) == [] and toy.differences(plain[0], plain[2]) != []


@pytest.mark.parametrize("method", STATIC)
def test_static_statistics_change_evaluation_and_not_training(method: str):
    runs = [
        toy.run(
            Serial(),
            toy.job(method, *WIDTHS, *ALL, "--algorithm.batch_norm", kind, "--rounds", "1"),
        )
        for kind in ("static", "aggregate")
    ]
    assert toy.differences(*(run.state["weights"] for run in runs)) == []
    assert runs[0].state["statistics"] and not runs[1].state["statistics"]
    assert toy.differences(*(run.column("loss_received") for run in runs)) != []


@each_method
def test_values_that_no_client_holds_do_not_change(method: str):
    rounds = toy.start(
        Serial(), toy.job(method, "--models.widths", "0.5", "--models.mix", "cnn", "--rounds", "1")
    )
    before = rounds.state.weights.clone()
    rounds.step()
    changed = rounds.state.weights["body.0.weight"] != before["body.0.weight"]
    units = changed.flatten(1).any(1).nonzero().flatten().tolist()
    if method == "feddropout":
        assert 16 < len(units) < 32  # three clients, half of the units each
    else:
        assert units == list(range(16))
    assert not changed[16:].any() or method == "feddropout"


@pytest.mark.parametrize(
    "variant", ["heterofl, dynamic", "fedrolex, dynamic", "fedrolex", "feddropout"]
)
def test_moments_are_not_kept_for_units_that_change(variant: str):
    keep = ("--local.keep_optimiser", "true")
    with pytest.raises(ConfigError, match="needs a new optimiser in each round"):
        toy.given(*KINDS[variant], *keep)
    for variant_flags in (("heterofl",), ("fjord",), KINDS[variant][:1]):
        toy.given(*variant_flags, *keep)  # theirs stay


@each_method
def test_a_model_that_cannot_be_cut_is_refused_at_the_start(method: str):
    job = toy.job(method, "--models.widths", "1,0.5", "--models.mix", "shufflenetv2")
    with pytest.raises(ConfigError, match="ShuffleNetV2 cannot be cut to a smaller width"):
        toy.start(Serial(), job)
    one = ("--participation", "0.1", "--models.mix", "shufflenetv2")
    assert toy.start(Serial(), toy.job(method, *one, *UNSEEN)).step()


@pytest.mark.parametrize("method", STATIC)
def test_a_rate_at_which_narrow_clients_diverge_stays_finite_with_clipping(method: str):
    steep = ("--models.widths", "1,0.25,0.1", "--models.mix", "mlp", "--participation", "1")
    sgd = ("--local.optimiser", "sgd", "--local.lr", "1", "--rounds", "2")
    by_default, free = (
        toy.run(Serial(), toy.job(method, *steep, *sgd, *flags)).column("train_loss").max()
        for flags in ((), FREE)
    )
    assert by_default < 100 and free > 1e6


def test_fedrolex_rolls_backwards_like_its_authors_code_if_the_step_is_negative():
    flags = ("--models.widths", "0.25", "--models.mix", "cnn", "--algorithm.roll_step", "-1")
    rounds = toy.start(Serial(), toy.job("fedrolex", *flags))
    rounds.step()
    before = rounds.state.weights["body.0.weight"].clone()
    rounds.step()
    changed = (rounds.state.weights["body.0.weight"] != before).flatten(1).any(1)
    assert changed.nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 31]  # of 32 units
