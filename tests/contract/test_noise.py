"""Distributed and correlated noise in runs."""

import math

import numpy as np
import pytest
import torch

from hpcfed.comm import Serial
from hpcfed.config.job import Job
from hpcfed.core.errors import ConfigError
from hpcfed.federation.transforms.privacy import correlated, discrete, distributed
from hpcfed.federation.transforms.privacy.noise import gaussian
from tests.contract import toy
from tests.threads import spmd

pytest.importorskip("dp_accounting", reason="needs hpcfed[privacy]")
MLP = ("--models.mix", "mlp", "--privacy.clip", "1")
LINEAR = ("--models.mix", "logistic")  # where nobody looks at the distribution of the noise
ALL = ("--participation", "1")


def job(by: str, *flags: str, method: str = "fedavg", rounds: int = 4) -> Job:
    return toy.job(method, "--rounds", str(rounds), *MLP, "--privacy.by", by, *flags)


def same(a: toy.Outcome, b: toy.Outcome) -> bool:
    return toy.differences([a.state, a.weights], [b.state, b.weights]) == []


def epsilons(outcome: toy.Outcome) -> list[float]:
    return [row["rounds/epsilon"] for row in outcome.rows]


# Distributed


def test_distributed_sums_without_noise_are_the_mean_up_to_the_grid():
    central = toy.run(Serial(), job("central", *ALL))
    shares = toy.run(Serial(), job("distributed", "--privacy.bits", "24", *ALL))
    for name, value in central.state.items():
        torch.testing.assert_close(shares.state[name], value, rtol=0, atol=1e-4)
    assert all(row["rounds/wraps"] == 0 for row in shares.rows)


@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "skellam"])
def test_distributed_noise_costs_a_little_more_than_central_noise(mechanism: str):
    noise = "--privacy.noise", "1"
    words = "--privacy.mechanism", mechanism, *noise, *ALL
    shares = toy.run(Serial(), job("distributed", *words, rounds=2))
    words = "--privacy.accountant", "rdp", *noise, *ALL
    central = toy.run(Serial(), job("central", *words, rounds=2))
    for more, less in zip(epsilons(shares), epsilons(central), strict=True):
        assert less < more < 1.001 * less
    quiet = toy.run(Serial(), job("central", *ALL, rounds=2))
    spread = [
        torch.cat([(o.state[n] - quiet.state[n]).flatten() for n in quiet.state]).std().item()
        for o in (shares, central)
    ]
    assert spread[0] == pytest.approx(spread[1], rel=0.05)


@pytest.mark.parametrize(
    ("method", "weighting"),
    [("fedavg", "samples"), ("scaffold", "uniform"), ("scaffold", "samples"), ("fedproto", None)],
)
def test_with_a_cap_shares_are_weighted_as_central_noise_has_it(method: str, weighting: str | None):
    """Sizes 1, 9, 8, 17, 21, 32 with cap 10; SCAFFOLD's control variates have weight 1."""
    flags = ["--privacy.cap", "10", "--evaluate.before", "false", *ALL]
    flags += ["--algorithm.weighting", weighting] if weighting else []
    central = toy.run(Serial(), job("central", *flags, method=method, rounds=2))
    flags += ["--privacy.bits", "24"]
    shares = toy.run(Serial(), job("distributed", *flags, method=method, rounds=2))
    want, got = (o.state if isinstance(o.state, dict) else vars(o.state) for o in (central, shares))
    torch.testing.assert_close(got, want, rtol=0, atol=2e-3, equal_nan=True)


def test_noise_of_weighted_shares_is_that_of_the_largest_weight():
    """z C U / sum u = 1 * 0.5 * 10 / (1 + 9 + 8 + 10 + 10 + 10) at most, 0.104 for each value."""
    flags = "--privacy.clip", "0.5", "--privacy.cap", "10", "--privacy.noise", "1", *ALL
    rounds = toy.start(Serial(), job("distributed", *flags))
    before = rounds.state
    rounds.step()
    noise = torch.cat([(rounds.state[n] - before[n]).flatten() for n in before])
    assert noise.std().item() == pytest.approx(0.5 * 10 / 48, rel=0.05)
    rule = rounds.fed.rule
    assert isinstance(rule, distributed.DistributedMean)
    grid = rule.grid(rounds.fed)  # of vectors of weight 1 at most
    assert grid.sigma == pytest.approx(0.5 / math.sqrt(6))


@pytest.mark.parametrize(
    "flags",
    [
        ("distributed", "--privacy.noise", "1"),
        ("distributed", "--privacy.noise", "1", "--privacy.cap", "10"),
        ("correlated", "--privacy.noise", "1", "--selection.groups", "2"),
        ("correlated", "--privacy.noise", "1", "--privacy.mechanism", "tree"),
    ],
)
def test_ranks_and_resuming_change_no_bit(flags, tmp_path):
    settings = job(*flags, *LINEAR)
    want = toy.run(Serial(), settings)
    spmd(2, lambda comm: toy.run(comm, settings, rounds=3, save=tmp_path))
    (got,) = spmd(1, lambda comm: toy.run(comm, settings, resume=tmp_path))
    assert same(got, want)
    assert epsilons(got) == epsilons(want)[3:]
    for on_three in spmd(3, lambda comm: toy.run(comm, settings)):
        assert same(on_three, want)
        assert epsilons(on_three) == epsilons(want)


def test_clients_send_integers_of_the_bits_of_the_job():
    outcome = toy.run(Serial(), job("distributed", "--privacy.bits", "12", *ALL, rounds=1))
    P = sum(value.numel() for value in outcome.state.values())
    assert set(outcome.column("up").flatten()) == {12 / 8 * (1 << (P - 1).bit_length())}


@pytest.mark.parametrize("masks", ["made", "charged"])
def test_masks_change_no_bit_of_shares(masks: str):
    flags = "--privacy.noise", "1", *LINEAR, *ALL
    secure = "--secure.by", "secagg", "--secure.masks", masks
    hidden = toy.run(Serial(), job("distributed", *flags, *secure, rounds=2))
    assert same(hidden, toy.run(Serial(), job("distributed", *flags, rounds=2)))


def test_a_target_finds_the_noise_of_shares():
    outcome = toy.run(Serial(), job("distributed", "--privacy.epsilon", "8", *LINEAR, *ALL))
    assert 7.99 < epsilons(outcome)[-1] <= 8


def test_fewer_clients_than_expected_cost_more():
    flags = "--privacy.noise", "1", *LINEAR
    few = toy.run(Serial(), job("distributed", *flags, "--privacy.fewest", "6", *ALL))
    lost = toy.run(
        Serial(),
        job("distributed", *flags, "--privacy.fewest", "6", "--system.dropout", "0.5", *ALL),
    )
    assert epsilons(lost)[-1] > epsilons(few)[-1]


def test_a_budget_that_a_small_cohort_exceeds_is_explained():
    flags = "--privacy.epsilon", "4", "--participation", "0.5", "--seed", "3", *LINEAR
    with pytest.raises(ConfigError, match="only 2 clients have sent.* set privacy.fewest"):
        toy.run(Serial(), job("distributed", *flags, rounds=1))
    toy.run(Serial(), job("distributed", *flags, "--privacy.fewest", "2", rounds=1))


def test_sums_beyond_the_ring_are_counted():
    rule = distributed.DistributedMean(job("distributed").privacy, False)
    assert rule.columns() == {"rounds/wraps": 0.0}
    total = np.array([1 << 15, -5])
    assert (discrete.wrap(total, 16) != total).sum() == 1


def test_noise_beyond_the_grid_is_refused():
    with pytest.raises(ConfigError, match="privacy.bits"):
        toy.run(Serial(), job("distributed", "--privacy.noise", "1e5", "--privacy.bits", "8", *ALL))


# Correlated


def test_one_group_is_central_noise_bit_for_bit():
    flags = "--privacy.noise", "0.7", "--participation", "0.5", *LINEAR
    flags += "--privacy.accountant", "rdp"  # which takes a tenth of the time
    central = toy.run(Serial(), job("central", *flags))
    one = toy.run(Serial(), job("correlated", "--selection.groups", "1", *flags))
    assert same(one, central)
    assert epsilons(one) == epsilons(central)


def test_without_noise_both_mechanisms_are_the_same_sums():
    banded = toy.run(Serial(), job("correlated", "--selection.groups", "2"))
    tree = toy.run(
        Serial(), job("correlated", "--selection.groups", "2", "--privacy.mechanism", "tree")
    )
    assert same(banded, tree)


def test_clients_take_part_only_when_it_is_their_groups_turn():
    rows = toy.run(Serial(), job("correlated", "--participation", "0.34", rounds=6)).rows
    for t, row in enumerate(rows):
        senders = np.flatnonzero(row["clients/up"])
        assert set(senders) <= {k for k in range(6) if k % 2 == t % 2}
    assert sum(len(np.flatnonzero(row["clients/up"])) for row in rows) > 6


def test_a_cycle_of_groups_costs_one_participation():
    flags = "--privacy.noise", "1", "--selection.groups", "3", *ALL
    four = epsilons(toy.run(Serial(), job("correlated", *flags, rounds=7)))
    gaussian = epsilons(toy.run(Serial(), job("central", "--privacy.noise", "1", *ALL, rounds=3)))
    assert four == pytest.approx([gaussian[t // 3] for t in range(7)])


def rule_of(kind: str, groups: int, rounds: int) -> correlated.CorrelatedMean:
    flags = "--privacy.mechanism", kind, "--selection.groups", str(groups)
    return correlated.CorrelatedMean(job("correlated", *flags, rounds=rounds))


def test_banded_noise_solves_its_equation_from_any_round():
    rule, section = rule_of("banded", 3, 8), (0, 1, 5, 40)
    c = np.array(rule.coefficients)
    noises = [rule.banded_noise(0, t, section) for t in range(8)]
    for t in range(8):
        z = sum(c[j] * noises[t - j] for j in range(min(t + 1, 3)))
        want = gaussian(0, "privacy", t, 0, 1, start=5, n=40) * correlated.sensitivity(c)
        np.testing.assert_allclose(z, want, atol=1e-12)
    resumed = rule_of("banded", 3, 8)
    assert np.array_equal(resumed.banded_noise(0, 6, section), noises[6])
    assert np.array_equal(rule.banded_noise(0, 2, section), noises[2])  # a round that is repeated


def test_prefixes_of_tree_noise_have_few_nodes():
    rule, section = rule_of("tree", 8, 16), (0, 0, 0, 20_000)
    prefix, variances = np.zeros(20_000), []
    for t in range(8):
        prefix += rule.tree_noise(0, t, section)
        variances.append(prefix.var() / correlated.tree_height(8))
    assert variances == pytest.approx([bin(t + 1).count("1") for t in range(8)], rel=0.06)


def test_correlated_noise_leaves_less_noise_in_prefixes():
    sums = {}
    for kind in ("banded", "tree"):
        rule = rule_of(kind, 8, 8)
        draw = rule.banded_noise if kind == "banded" else rule.tree_noise
        noise = sum(draw(0, t, (0, 0, 0, 20_000)) for t in range(8))
        sums[kind] = noise.var()
    assert sums["banded"] < sums["tree"] < 8  # of independent noise


# Both


@pytest.mark.parametrize("by", ["distributed", "correlated"])
def test_settings_that_no_account_covers_are_refused(by: str):
    for flags, words in {
        ("--privacy.clipping", "adaptive"): "privacy.clipping",
        ("--privacy.mechanism", "tree" if by == "distributed" else "skellam"): "mechanism",
        ("--selection.by", "uniform", "--participation", "0.5"): "selection.by",
        ("--algorithm.weighting", "samples"): "algorithm.weighting",
    }.items():
        with pytest.raises(ConfigError, match=words):
            job(by, *flags)


MIXES = {"scaffold": "mlp", "fedproto": "mlp,cnn", "fedmd": "mlp,cnn", "fedclassavg": "mlp,cnn"}


@pytest.mark.parametrize("method", MIXES)
def test_methods_whose_server_only_averages_run_with_shares(method: str):
    flags = "--privacy.noise", "0.1", "--models.mix", MIXES[method]
    outcome = toy.run(Serial(), job("distributed", *flags, method=method, rounds=1))
    assert np.isfinite(epsilons(outcome)).all()
