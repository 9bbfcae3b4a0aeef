"""Privacy in rounds: what noise leaves as it is, bits, the account, budgets, and refusals."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import hpcfed
from hpcfed.algorithms.trial import check_privacy, measure
from hpcfed.clients.selection import Choice
from hpcfed.comm import Serial
from hpcfed.config.selection import Selection
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.federation.transforms.privacy.accounting import Accountant, Release
from hpcfed.federation.transforms.privacy.adaptive import adapted
from hpcfed.main import main
from hpcfed.report.cite import citation_keys
from hpcfed.report.figures import learning
from hpcfed.report.page import tables
from hpcfed.results.state import state
from hpcfed.results.summary import brief, facts
from hpcfed.storage.columns import is_of_machine
from hpcfed.storage.record import load
from tests.contract import toy
from tests.threads import spmd

pytest.importorskip("dp_accounting")

MLP = ("--models.mix", "mlp", "--rounds", "4", "--evaluate.before", "false")
CENTRAL = ("--privacy.by", "central", "--privacy.clip", "0.5")
LOCAL = ("--privacy.by", "local", "--privacy.clip", "0.5")
NOISE = ("--privacy.noise", "1")
RDP = ("--privacy.accountant", "rdp")  # the default one takes a second for each number of rounds
ALL = ("--participation", "1")
UNIFORM = ("--algorithm.weighting", "uniform")
DROP = ("--run.on_client_fault", "drop")


def epsilons(outcome: toy.Outcome) -> list[float]:
    return [row["rounds/epsilon"] for row in outcome.rows]


def changes(before: Params, after: Params) -> torch.Tensor:
    """All values of a state after a round less those before it, [P]."""
    return torch.cat([(after[name] - value).flatten() for name, value in before.items()])


@pytest.mark.parametrize("privacy", [CENTRAL, LOCAL])
def test_what_is_sent_after_the_last_round_no_account_counts_and_is_refused_at_the_start(privacy):
    words = (*MLP, *privacy, *NOISE, *RDP, *ALL)
    assert toy.start(Serial(), toy.job("fedavg", *UNIFORM, *words))
    with pytest.raises(ConfigError, match="send something after the last round"):
        toy.start(Serial(), toy.job("tests.contract.cheats:SendsLate", *words))


# Poisson cohorts


def test_poisson_cohorts_have_each_client_with_its_probability_independently():
    choice = Choice(Selection(by="poisson"), 0, np.ones(50), 10, participation=0.2)
    cohorts = [choice.sample(t) for t in range(2000)]
    assert all(cohort == sorted(set(cohort)) for cohort in cohorts)
    member = np.array([np.isin(np.arange(50), cohort) for cohort in cohorts])
    assert abs(member.mean(0) - 0.2).max() < 0.04
    assert member.sum(1).std() == pytest.approx(math.sqrt(50 * 0.2 * 0.8), rel=0.1)
    assert abs(np.corrcoef(member.T)[np.triu_indices(50, 1)]).max() < 0.1


def test_with_probability_one_all_clients_take_part_and_with_a_small_one_nobody_may():
    everybody = Choice(Selection(by="poisson"), 0, np.ones(7), 7, participation=1.0)
    assert everybody.sample(3) == list(range(7))
    few = Choice(Selection(by="poisson"), 0, np.ones(7), 1, participation=0.02)
    assert [] in [few.sample(t) for t in range(20)]


def test_cohorts_are_poisson_with_central_privacy_unless_the_job_says_otherwise():
    assert toy.job("fedavg", *MLP, *CENTRAL).selection.by == "poisson"
    assert toy.job("fedavg", *MLP, *CENTRAL).sources()["selection.by"] == "privacy.by = central"
    fixed = ("--selection.by", "uniform", "--privacy.neighbours", "replace")
    assert toy.job("fedavg", *MLP, *CENTRAL, *fixed).selection.by == "uniform"
    assert toy.job("fedavg", *MLP, *CENTRAL, *ALL).selection.by == "uniform"
    for flags in ((), LOCAL):
        assert toy.job("fedavg", *MLP, *flags).selection.by == "uniform"


# What is exact


@pytest.mark.parametrize("by", ["central", "local", "distributed", "correlated", "examples"])
def test_without_a_bound_nothing_is_hidden_and_the_job_is_refused(by: str):
    with pytest.raises(ConfigError, match=f"by = '{by}': it hides nothing.*set privacy.clip"):
        toy.job("fedavg", *MLP, "--privacy.by", by)


def test_a_bound_out_of_reach_changes_no_bit_of_local_privacy():
    plain = toy.run(Serial(), toy.job("fedavg", *MLP, *UNIFORM))
    private = toy.run(Serial(), toy.job("fedavg", *MLP, *LOCAL, "--privacy.clip", "1e6"))
    assert toy.differences(plain, private) == []


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_a_bound_out_of_reach_leaves_the_means_of_central_privacy(method: str):
    flags = (*MLP, *ALL, *UNIFORM)
    plain = toy.run(Serial(), toy.job(method, *flags))
    private = toy.run(Serial(), toy.job(method, *flags, *CENTRAL, "--privacy.clip", "1e4"))
    for name, value in plain.state.items():
        torch.testing.assert_close(private.state[name], value, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("flags", [(*CENTRAL, *RDP, "--privacy.clipping", "adaptive"), LOCAL])
def test_a_private_run_has_the_same_bits_on_any_ranks_and_after_resume(
    flags: tuple[str, ...], tmp_path: Path
):
    job = toy.job("scaffold", *MLP, *flags, *NOISE, "--rounds", "3")
    want = toy.run(Serial(), job)
    for got in spmd(5, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []
    toy.run(Serial(), job, rounds=2, save=tmp_path)
    again = toy.run(Serial(), job, resume=tmp_path)
    assert toy.differences(again.state, want.state) == []
    assert toy.differences(again.rows, want.rows[2:]) == []


# Bytes

INT8 = ("--compression.min_size", "1", "--compression.down", "int8")


def test_the_bound_of_adaptive_clipping_is_four_bytes_beside_an_encoded_download():
    words = (*MLP, *ALL, *UNIFORM, *INT8)
    plain = toy.run(Serial(), toy.job("fedavg", *words))
    adaptive = (*CENTRAL, *NOISE, *RDP, "--privacy.clipping", "adaptive")
    rounds = toy.start(Serial(), toy.job("fedavg", *words, *adaptive))
    down = np.stack([rounds.step()[0]["clients/down"] for _ in range(4)])
    assert np.array_equal(down, plain.column("down") + 4)
    announced = [measure(rounds.fed).traffic(k)[0] for k in range(6)]
    assert announced == down[-1].tolist()


@pytest.mark.parametrize("codec", ["int8", "float16", "top-k"])
def test_bytes_do_not_tell_which_classes_a_client_has(codec: str):
    """Means by class are complete tensors, whatever a codec makes of the rows of a client."""
    words = (*MLP, *ALL, *CENTRAL, *NOISE, *RDP)
    plain = toy.run(Serial(), toy.job("fedproto", *words)).column("up")
    encoded = ("--compression.by", codec, "--compression.min_size", "1")
    rounds = toy.start(Serial(), toy.job("fedproto", *words, *encoded))
    up = np.stack([rounds.step()[0]["clients/up"] for _ in range(4)])
    assert np.array_equal(up, plain)
    assert len(set(plain.ravel().tolist())) == 1
    assert [measure(rounds.fed).traffic(k)[1] for k in range(6)] == up[-1].tolist()


# Noise


def test_a_round_without_clients_adds_noise_alone():
    job = toy.job("fedavg", *MLP, *CENTRAL, *NOISE, *RDP, "--participation", "0.01")
    rounds = toy.start(Serial(), job)
    before = rounds.state
    row, _ = rounds.step()
    assert not row["clients/cohort"].any() and rounds.fed.choice.sample(0) == []
    noise = changes(before, rounds.state)
    std = 0.5 / (0.01 * 6)  # z C / (q K)
    assert noise.std().item() == pytest.approx(std, rel=0.05)
    assert abs(noise.mean().item()) < 4 * std / math.sqrt(len(noise))
    assert row["rounds/epsilon"] > 0


def test_what_one_client_adds_to_the_state_is_bounded():
    job = toy.job("fedavg", *MLP, *ALL, *CENTRAL, "--privacy.clip", "0.01")
    rounds = toy.start(Serial(), job)
    before = rounds.state
    rounds.step()
    change = changes(before, rounds.state).norm()
    assert 0 < change <= 0.01 * (1 + 1e-6)  # the mean of six updates of this length at most


def test_with_a_cap_clients_count_by_their_examples_up_to_it():
    """Sizes 1, 9, 8, 17, 21, 32 with cap 10: weights 0.1, 0.9, 0.8, 1, 1, 1, in sum 4.8."""
    job = toy.job("fedavg", *MLP, *ALL, *CENTRAL, "--privacy.clip", "1e4", "--privacy.cap", "10")
    assert job.algorithm.weighting == "samples"
    rounds = toy.start(Serial(), job)
    updates = {}
    weights = [0.1, 0.9, 0.8, 1, 1, 1]
    plain = toy.start(Serial(), toy.job("fedavg", *MLP, *ALL))
    before = plain.state
    for k in range(6):
        alone = toy.start(Serial(), toy.job("fedavg", *MLP, *ALL))
        alone.begin(0)
        updates[k] = alone.algorithm.round(alone.fed, before, [k], 0) - before
    rounds.step()
    for name, value in before.items():
        want = value + sum(w * updates[k][name] for k, w in enumerate(weights)) / 4.8
        torch.testing.assert_close(rounds.state[name], want, rtol=1e-4, atol=1e-5)


def test_local_noise_of_n_clients_is_that_of_their_mean():
    job = toy.job("fedavg", *MLP, *ALL, *LOCAL, *NOISE, "--privacy.clip", "1e-6", "--rounds", "1")
    outcome, before = toy.run(Serial(), job), toy.start(Serial(), job).state
    noise = changes(before, outcome.state)
    assert noise.std().item() == pytest.approx(2e-6 / math.sqrt(6), rel=0.1)


def test_prototypes_of_all_classes_are_sent_with_noise_and_the_same_bytes_by_all():
    outcome = toy.run(Serial(), toy.job("fedproto", *MLP, *ALL, *CENTRAL, *NOISE))
    want = 4 * toy.CLASSES * (toy.D + 1)  # client 0 has one class
    assert (outcome.column("up") == want).all()


def test_the_bound_follows_the_norms_of_the_clients():
    flags = ("--privacy.clipping", "adaptive", "--privacy.clip_rate", "2", "--rounds", "12")
    job = toy.job("fedavg", *MLP, *ALL, *CENTRAL, *flags, "--local.lr", "0.001")
    outcome = toy.run(Serial(), job)
    bounds = [row["rounds/clip"] for row in outcome.rows]
    assert bounds[0] != 0.5 and 0.3 < np.median(bounds[6:]) / bounds[-1] < 3
    plain = toy.run(Serial(), toy.job("fedavg", *MLP, *ALL, "--local.lr", "0.001"))
    bits = outcome.column("up")[0] - plain.column("up")[0]
    assert (bits == 4).all()


def test_the_bits_of_several_uploads_have_the_noise_of_as_many_bits():
    words = (*CENTRAL, *NOISE, *RDP, "--privacy.clipping", "adaptive", "--privacy.bit_noise", "0.9")
    clips, noise = [], 0.9 * rng.stream(0, "privacy", "bit", 0).standard_normal()
    for uploads in (1, 4):
        rounds = toy.start(Serial(), toy.job("fedavg", *MLP, *words))
        rounds.fed.rule.close(rounds.fed, uploads, [0.5])
        clips.append(rounds.fed.rule.clip)
    assert clips == pytest.approx(
        [adapted(0.5, 0.5 + noise, 3, 0.2, 0.5), adapted(0.5, 0.5 + 2 * noise, 12, 0.2, 0.5)]
    )


# The account


def test_a_client_that_fails_leaves_the_round_of_a_method_with_one_exchange():
    assert toy.run(Serial(), toy.job("fedavg", *MLP, *CENTRAL, *NOISE, *DROP), rounds=1)


def test_epsilon_of_each_round_is_that_of_the_accountant():
    outcome = toy.run(Serial(), toy.job("fedavg", *MLP, *CENTRAL, *NOISE))
    accountant = Accountant(1e-5)
    for t, got in enumerate(epsilons(outcome)):
        assert got == pytest.approx(accountant.epsilon([Release(1.0, 0.5, t + 1)]), rel=1e-3)


def test_a_method_that_sends_twice_in_a_round_pays_twice():
    once, twice = (
        toy.run(Serial(), toy.job(name, *MLP, *CENTRAL, *NOISE, *more))
        for name, more in (("fedavg", ()), ("feddane", ("--algorithm.sets", "same")))
    )
    assert epsilons(twice)[1] == epsilons(once)[3]


def test_local_noise_costs_by_the_busiest_client():
    outcome = toy.run(Serial(), toy.job("fedavg", *MLP, *LOCAL, *NOISE))
    busiest = outcome.column("cohort").cumsum(0).max(1)
    want = [Accountant(1e-5).epsilon([Release(1.0, 1.0, int(n))]) for n in busiest]
    assert epsilons(outcome) == pytest.approx(want)


@pytest.mark.parametrize("flags", [CENTRAL, (*CENTRAL, *RDP), LOCAL])
def test_noise_for_an_epsilon_reaches_it_in_the_last_round(flags: tuple[str, ...]):
    job = toy.job("fedavg", *MLP, *flags, "--privacy.epsilon", "8", "--rounds", "2")
    spent = epsilons(toy.run(Serial(), job))[-1]
    assert spent == pytest.approx(8, rel=1e-3) and spent <= 8


def test_a_run_ends_before_the_round_that_would_exceed_its_budget_and_continues_with_more():
    job = toy.job("fedavg", *MLP, *CENTRAL, *NOISE, "--privacy.epsilon", "5")
    rounds = toy.start(Serial(), job)
    rows = []
    while not rounds.over:
        rows.append(rounds.step()[0])
    assert rounds.t == 2 and rows[-1]["rounds/epsilon"] <= 5
    assert "the privacy budget is spent" in rounds.early_end
    more = toy.job("fedavg", *MLP, *CENTRAL, *NOISE, "--privacy.epsilon", "6")
    assert more.identity() == job.identity()


def test_a_round_that_is_the_last_by_its_budget_is_evaluated():
    flags = ("--privacy.epsilon", "9", "--evaluate.every", "100", "--rounds", "40")
    rounds = toy.start(Serial(), toy.job("fedavg", *MLP, *CENTRAL, *NOISE, *RDP, *flags))
    rows = []
    while not rounds.over:
        rows.append(rounds.step()[0])
    evaluated = [not math.isnan(row["rounds/accuracy_pooled"]) for row in rows]
    assert 2 < len(rows) < 40 and evaluated[-1] and not all(evaluated)


def test_a_run_with_calculated_noise_depends_on_its_rounds_and_its_epsilon():
    def identity(*flags: str) -> dict:
        return toy.job("fedavg", *MLP, *CENTRAL, *flags).identity()

    target = ("--privacy.epsilon", "5")
    assert identity(*target) != identity(*target, "--rounds", "9")
    assert identity(*target) != identity("--privacy.epsilon", "6")
    assert identity(*NOISE) == identity(*NOISE, "--rounds", "9")


# Refusals


@pytest.mark.parametrize(
    ("method", "flags", "message"),
    [
        ("fedavg", ("--privacy.by", "central", *NOISE), "set privacy.clip"),
        ("fedavg", (*CENTRAL, "--selection.by", "size", *UNIFORM), "by their data"),
        ("fedavg", (*CENTRAL, "--selection.by", "oort"), "by their data"),
        ("fedavg", (*CENTRAL, "--algorithm.weighting", "samples"), "or privacy.cap"),
        ("fedavg", (*LOCAL, "--algorithm.weighting", "samples"), "without limit"),
        ("fedavg", (*CENTRAL, "--selection.by", "uniform"), "no client more or less"),
        ("fedavg", (*CENTRAL, "--edges.number", "2"), "set edges.number = 0"),
        (
            "fedavg",
            (*CENTRAL, "--privacy.accountant", "rdp", "--privacy.neighbours", "replace"),
            "privacy.accountant = 'pld'",
        ),
        ("fedasync", CENTRAL, "works without rounds"),
        ("cyclic", CENTRAL, "schedules its clients itself"),
        ("fedavg", (*CENTRAL, "--selection.by", "cyclic"), "independent of one another"),
        ("fedavg", (*CENTRAL, "--local.stragglers", "0.25"), "who is slow depends on who else"),
        ("fedavg", (*CENTRAL, "--local.class_weights", "all"), "examples of each class"),
        (
            "fedavg",
            (*CENTRAL, "--privacy.clipping", "adaptive", "--secure.by", "secagg"),
            "no mask of secure.by hides",
        ),
        ("fedkd", (*LOCAL, "--models.proxy", "mlp"), "whose ranks follow from the clients' data"),
    ],
)
def test_a_job_without_an_account_is_refused(method: str, flags: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        toy.job(method, *MLP, *flags)


@pytest.mark.parametrize(
    ("method", "flags", "message"),
    [
        ("cfl", CENTRAL, "hides what single clients send"),
        ("local", CENTRAL, "has no effect"),
        ("feddane", CENTRAL, "chooses some of its cohorts itself"),
        ("heterofl", (*CENTRAL, "--models.widths", "1,0.5"), "pieces of larger tensors"),
        ("fedgh", (*LOCAL, *NOISE), "whole or plain numbers"),
        ("local", LOCAL, "send nothing"),
        ("central", LOCAL, "send nothing"),
        ("fedrare", LOCAL, "another client reads how many examples of each class"),
        ("fedmd", (*LOCAL, *DROP), "the round is repeated"),
        ("fedavg", (*CENTRAL, *NOISE, "--privacy.epsilon", "0.1"), "costs 3.5"),
        (
            "fedavg",
            (*CENTRAL, *NOISE, "--privacy.clipping", "adaptive", "--privacy.bit_noise", "0.1"),
            "not above half",
        ),
    ],
)
def test_a_method_that_reveals_more_than_is_counted_is_refused_before_it_trains(
    method: str, flags: tuple[str, ...], message: str
):
    with pytest.raises(ConfigError, match=message):
        check_privacy(toy.start(Serial(), toy.job(method, *MLP, *flags)).fed)


# What is said


JOB = [
    *("--clients", "10", "--participation", "0.5", "--algorithm.name", "fedavg"),
    *("--models.mix", "logistic", "--data.train_limit", "90", "--data.partition", "iid"),
    *("--evaluate.before", "false", "--rounds", "6", *CENTRAL, *NOISE),
]


def test_a_run_that_has_spent_its_budget_is_finished_and_continues_with_a_larger_one(
    tmp_path: Path, capsys
):
    out, straight = tmp_path / "run", tmp_path / "straight"
    assert main([*JOB, "--out", str(out), "--privacy.epsilon", "5"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for words in (
        "noise multiplier 1; ends before epsilon exceeds 5; Poisson cohorts, each client with",
        "of federations in which one client takes part or does not; by privacy loss distributions",
        "not hidden: scores, losses",
        "ended after round 2: the privacy budget is spent",
    ):
        assert words in printed, words
    record = load(out)
    assert record.rounds == 2 and state(out).word == "finished"
    assert "privacy: epsilon 4.854 at delta 1e-05" in brief(record)
    assert facts(record)["privacy"]["epsilon"] == pytest.approx(4.854, rel=1e-3)

    assert main(["--resume", str(out), "--privacy.epsilon", "6", "--quiet"]) == 0
    assert main([*JOB, "--out", str(straight), "--privacy.epsilon", "6", "--quiet"]) == 0
    assert load(out).rounds == load(straight).rounds == 3
    for name, column in load(straight).columns.items():
        if not is_of_machine(name):
            np.testing.assert_array_equal(load(out).columns[name], column)

    private = hpcfed.load(out)
    assert tables.run(private)["epsilon"] == facts(load(out))["privacy"]["epsilon"]
    assert tables.run_heads([private], "accuracy")["epsilon"] == ("epsilon", "number")
    (curve,) = [one for _, one in learning.numbers([private])]
    assert curve.epsilon[-1] == load(out).columns["rounds/epsilon"][-1]
    assert learning.epsilon([hpcfed.load(out)]).axes[0].get_xlabel() == "epsilon so far"
    assert {"mcmahan2018dp"} <= set(citation_keys(record))


def test_a_dry_run_says_the_noise_that_the_job_will_have(capsys):
    job = [flag for flag in JOB if flag not in NOISE]
    assert main([*job, *RDP, "--privacy.epsilon", "5", "--dry-run", "true"]) == 0
    z = Accountant(1e-5, "rdp").calibrate(5.0, (0.5, 6))
    assert f"noise multiplier {z:g}, computed for epsilon 5" in capsys.readouterr().out


def test_no_noise_is_said_to_hide_nothing(tmp_path: Path, capsys):
    job = [flag for flag in JOB if flag not in NOISE]
    assert main([*job, "--out", str(tmp_path / "run")]) == 0
    assert "no noise (privacy.noise, privacy.epsilon): nothing is hidden" in capsys.readouterr().out
    assert "privacy" not in facts(load(tmp_path / "run"))


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "mifa"])
def test_the_servers_step_counts_the_expected_cohort_not_who_took_part(method: str):
    rounds = toy.start(Serial(), toy.job(method, *MLP, *CENTRAL))
    rounds.begin(0)
    state, ones = rounds.state, rounds.state.x.map(torch.ones_like)
    mean = {"x": ones, "c": state.c.map(torch.ones_like)} if method == "scaffold" else ones
    steps = [rounds.algorithm.server(rounds.fed, state, mean, ks) for ks in ([1], [0, 1, 2, 4])]
    assert toy.differences(*steps) == []
    assert rounds.fed.share([1]) == 0.5
    assert toy.start(Serial(), toy.job(method, *MLP)).fed.share([1]) == 1 / 6


def test_scaffold_sends_control_variates_in_units_of_the_models_change():
    """4 steps of 0.125: at first c - c_k = 0, so that the new c_k is -change / 0.5."""
    flags = (*MLP, *UNIFORM, "--local.steps", "4", "--local.lr", "0.125")
    rounds = toy.start(Serial(), toy.job("scaffold", *flags))
    rounds.begin(0)
    client = rounds.fed.clients[3]
    upload = rounds.algorithm.local(rounds.fed, client, rounds.state, 0)
    (change,), (control,) = upload["x"].terms, upload["c"].terms
    assert toy.differences(control.value, -1 * change.value) == []
    assert toy.differences(client.memory["control"], -2 * change.value) == []


@pytest.mark.parametrize(
    ("flags", "unit"),
    [
        (("--local.epochs", "2", "--local.batch", "8", "--local.lr", "0.1"), 0.5),  # 2 * 2 * 0.1
        (("--local.steps", "7", "--local.lr", "0.5"), 4.0),
    ],
)
def test_the_unit_of_control_variates_is_the_nearest_power_of_two(flags: tuple, unit: float):
    """Clients have 15 examples on average, which are 2 batches."""
    rounds = toy.start(Serial(), toy.job("scaffold", *MLP, *flags))
    assert rounds.algorithm.unit(rounds.fed) == unit
