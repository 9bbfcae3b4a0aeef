"""Clipping, noise and accounting of differential privacy, by hand and against published numbers."""

import math

import numpy as np
import pytest
import torch
from torch import tensor

from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params
from hpcfed.federation.transforms.bounded import Bound
from hpcfed.federation.transforms.privacy import adaptive, noise
from hpcfed.federation.transforms.privacy.accounting import (
    COARSE,
    Accountant,
    Ledger,
    Release,
    renyi,
)
from hpcfed.federation.upload import Upload

dp_accounting = pytest.importorskip("dp_accounting")

MNIST = 256 / 60000


# Clipping


def clipped(values: dict[str, float], bound: float, **how: object) -> list[float]:
    """The values that a client sends, of one tensor each."""
    mean = Mean.of(Params({name: tensor([value]) for name, value in values.items()}))
    sent = Bound(bound, **how).upload(None, None, Upload(mean))
    return [value.item() for value in sent.value.terms[0].value.values()]


def test_a_vector_is_scaled_to_the_bound_with_all_its_tensors_together():
    assert clipped({"a": 3.0, "b": 4.0}, 1.0) == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("bound", [5.0, 10.0, math.inf])
def test_a_vector_within_the_bound_keeps_its_bits(bound: float):
    assert clipped({"a": 3.0, "b": 4.0}, bound) == [3.0, 4.0]
    assert clipped({"a": 0.0}, bound) == [0.0]


def test_each_of_two_layers_gets_the_bound_over_the_root_of_two():
    layers = clipped({"a": 3.0, "b": 4.0}, 1.0, layers=True)
    assert layers == pytest.approx([0.70710678, 0.70710678])


def test_rounding_does_not_lift_a_clipped_vector_above_the_bound():
    g = np.random.default_rng(0)
    for _ in range(200):
        values = torch.tensor(g.standard_normal(50), dtype=torch.float32)
        sent = Bound(0.3).upload(None, None, Upload(Mean.of(Params(a=values))))
        assert sent.value.terms[0].value["a"].double().norm() <= 0.3


def test_of_means_by_class_sums_and_counts_are_clipped_as_one_vector():
    """Sum 2 * 3 and count 2: (6, 2) has norm 6.32; with the count 8 fold (6, 16) has 17.09."""
    mean = Mean.of(Params(proto=tensor([[3.0]])), Params(proto=tensor([[2.0]])))
    for scale, norm in ((1.0, math.sqrt(40)), (8.0, math.sqrt(292))):
        (term,) = Bound(1.0, count_scale=scale).upload(None, None, Upload(mean)).value.terms
        assert term.value["proto"].item() == 3.0  # the mean itself stays
        assert term.weight["proto"].item() == pytest.approx(2.0 / norm, rel=1e-5)


def test_noise_is_split_between_vector_and_bit_so_that_both_together_have_the_multiplier():
    z = adaptive.split_noise(1.0, 2.5)
    assert z**-2 + (2 * 2.5) ** -2 == pytest.approx(1.0)
    assert adaptive.split_noise(0.0, 0.0) == 0
    with pytest.raises(ConfigError, match="not above half"):
        adaptive.split_noise(1.0, 0.5)


def test_the_bound_shrinks_if_all_vectors_are_within_it_and_rests_at_the_median():
    assert adaptive.adapted(2.0, 0.5 * 10, 10, 0.2, 0.5) == pytest.approx(2 * math.exp(-0.1))
    norms, bound = np.linspace(0.1, 2.0, 41), 0.1
    for _ in range(300):
        bits = sum(adaptive.bit(length, bound) for length in norms)
        bound = adaptive.adapted(bound, bits, len(norms), 0.2, 0.5)
    assert bound == pytest.approx(np.median(norms), rel=0.05)


def test_a_share_beyond_one_counts_as_one():
    assert adaptive.adapted(1.0, 99.0, 10, 0.2, 0.5) == pytest.approx(math.exp(-0.1))
    assert adaptive.adapted(1.0, -99.0, 10, 0.2, 0.5) == pytest.approx(math.exp(0.1))


# Noise by position


def test_any_section_of_an_array_gets_the_noise_of_the_complete_array():
    n = 2 * noise.BLOCK + 77
    complete = noise.gaussian(3, "noise", 1, 0, "w", n=n)
    for start, stop in ((0, 1), (5, 900), (noise.BLOCK - 1, noise.BLOCK + 1), (70_000, n)):
        part = noise.gaussian(3, "noise", 1, 0, "w", start=start, n=stop - start)
        assert (part == complete[start:stop]).all()
    assert noise.gaussian(3, "noise", 1, start=9, n=0).size == 0


def test_noise_is_standard_normal_and_other_rounds_and_arrays_have_their_own():
    values = noise.gaussian(0, "noise", 0, 0, "w", n=100_000)
    assert abs(values.mean()) < 0.01 and values.std() == pytest.approx(1, abs=0.01)
    others = [noise.gaussian(0, "noise", *key, n=100_000) for key in ((1, 0, "w"), (0, 0, "v"))]
    for other in others:
        assert abs(np.corrcoef(values, other)[0, 1]) < 0.02


# Accounting: published settings, https://arxiv.org/abs/1607.00133, TF Privacy's tutorial,
# https://arxiv.org/abs/1710.06963; numbers of dp-accounting 0.6.0


@pytest.mark.parametrize(
    ("q", "z", "rounds", "delta", "rdp", "pld"),
    [
        (0.01, 4.0, 10_000, 1e-5, 1.03549, 0.946999),
        (MNIST, 1.1, 14_062, 1e-5, 2.59656, 2.38169),
        (MNIST, 1.3, 3_515, 1e-5, 0.9544, 0.8645),
        (5000 / 763_430, 1.0, 5_000, 1e-9, 4.18329, 3.89883),
        (1.0, 1.0, 1, 1e-5, 4.72851, 4.37718),
        (1.0, 10.0, 100, 1e-5, 4.72851, 4.37718),
    ],
)
def test_epsilon_of_a_published_setting(q, z, rounds, delta, rdp, pld):
    ledger = Ledger([Release(z, q, rounds)])
    assert Accountant(delta, "rdp").epsilon(ledger) == pytest.approx(rdp, rel=1e-4)
    assert Accountant(delta, "pld").epsilon(ledger) == pytest.approx(pld, rel=1e-4)


def test_under_replacement_both_accountants_get_twice_the_sensitivity():
    ledger = Ledger([Release(10.0, 1.0, 100)])
    assert Accountant(1e-5, "rdp", "replace").epsilon(ledger) == pytest.approx(10.72551, rel=1e-5)
    assert Accountant(1e-5, "pld", "replace").epsilon(ledger) == pytest.approx(9.99726, rel=1e-5)


def test_renyi_divergences_are_computed_once_per_noise_and_add_up_as_dp_accounting_adds_them(
    monkeypatch,
):
    """The epsilon of each round is that of a longer ledger."""
    event, last = dp_accounting.PoissonSampledDpEvent, dp_accounting.GaussianDpEvent(2.5)
    direct = dp_accounting.rdp.RdpAccountant().compose(event(0.3, last), 4).compose(last, 2)
    want, computed, compose = direct.get_epsilon(1e-5), [], dp_accounting.rdp.RdpAccountant.compose

    def count(self, event, times=1):
        computed.append(event)
        return compose(self, event, times)

    monkeypatch.setattr(dp_accounting.rdp.RdpAccountant, "compose", count)
    renyi.cache_clear()
    releases = [Release(2.5, 0.3, 4), Release(2.5, 1.0, 2)]
    epsilons = [Accountant(1e-5, "rdp").epsilon(releases[:n]) for n in (1, 2, 2)]
    assert epsilons[0] < epsilons[1] == epsilons[2] == want
    assert len(computed) == 2


def test_renyi_divergences_of_many_rates_are_computed_once_each(monkeypatch):
    """Clients of DP-SGD have a rate of their own, and each round asks for all of them."""
    computed = []
    account = dp_accounting.rdp.RdpAccountant
    monkeypatch.setattr(account, "compose", lambda self, event, times=1: computed.append(event))
    renyi.cache_clear()
    for _ in range(2):
        for n in range(2, 502):
            renyi(2.5, 1 / n, "add-remove", 0)
    renyi.cache_clear()  # of what was not computed
    assert len(computed) == 500


def test_dp_accounting_still_reads_one_event_differently_in_its_two_accountants():
    """When this fails, the RDP accountant doubles the sensitivity too: remove our z / 2."""
    replaced = dp_accounting.NeighboringRelation.REPLACE_ONE
    rdp = dp_accounting.rdp.RdpAccountant(neighboring_relation=replaced)
    pld = dp_accounting.pld.PLDAccountant(replaced, COARSE)
    event = dp_accounting.GaussianDpEvent(1.0)
    once, twice = Ledger([Release(1.0, 1.0)]), Ledger([Release(0.5, 1.0)])
    as_written, doubled = Accountant(1e-5, "rdp").epsilon(once), Accountant(1e-5).epsilon(twice)
    assert rdp.compose(event).get_epsilon(1e-5) == pytest.approx(as_written)
    assert pld.compose(event).get_epsilon(1e-5) == pytest.approx(doubled, rel=1e-4)


@pytest.mark.parametrize(
    ("clients", "m", "z", "bounds"),
    [
        (1000, 10, 2.0, (1.48253, 0.718037, 0.189799, 0.344370)),
        (100, 10, 5.0, (4.02488, 1.74302, 0.758287, 1.553219)),
    ],
)
def test_cohorts_of_fixed_size_cost_more_than_poisson_cohorts(clients, m, z, bounds):
    ledger = Ledger([Release(z, m / clients, 100)])
    accountants = (
        Accountant(1e-5, "rdp", "replace", "fixed", clients),
        Accountant(1e-5, "pld", "replace", "fixed", clients),
        Accountant(1e-5, "pld", "add-remove"),
        Accountant(1e-5, "pld", "replace"),
    )
    for accountant, bound in zip(accountants, bounds, strict=True):
        assert accountant.epsilon(ledger) == pytest.approx(bound, rel=1e-4)


def test_a_ledger_composes_all_releases_also_those_with_other_noise():
    ledger = Ledger()
    for _ in range(3):
        ledger.add(2.0, 1.0)
    ledger.add(1.0, 1.0)
    assert ledger == [Release(2.0, 1.0, 3), Release(1.0, 1.0, 1)]
    equal = Ledger([Release((3 / 4 + 1) ** -0.5, 1.0)])
    for by in ("pld", "rdp"):
        accountant = Accountant(1e-5, by)
        assert accountant.epsilon(ledger) == pytest.approx(accountant.epsilon(equal))
    assert Ledger.from_tree(ledger.to_tree()) == ledger
    assert ledger.then(1.0, 1.0) == [Release(2.0, 1.0, 3), Release(1.0, 1.0, 2)] != ledger


def test_sampled_releases_of_two_kinds_compose():
    accountant = Accountant(1e-5, interval=COARSE)
    split = [Release(5.0, 0.1, 40), Release(5.0, 0.1, 60)]
    assert accountant.epsilon(split) == pytest.approx(
        accountant.epsilon([Release(5.0, 0.1, 100)]), rel=1e-3
    )


def test_nothing_released_costs_nothing_and_no_noise_everything():
    for by in ("pld", "rdp"):
        assert Accountant(1e-5, by).epsilon([]) == 0
        assert Accountant(1e-5, by).epsilon([Release(1.0, 1.0, 3), Release(0.0, 0.5)]) == math.inf


@pytest.mark.parametrize(
    ("by", "q", "rounds", "z"), [("rdp", 1e-3, 1500, 0.713777), ("pld", 5e-3, 2000, 0.863891)]
)
def test_noise_for_a_target_is_the_smallest_that_reaches_it(by, q, rounds, z):
    accountant = Accountant(1e-6, by)
    got = accountant.calibrate(2.0, (q, rounds))
    assert got == pytest.approx(z, rel=3e-4)
    run = accountant.for_run(got, (q, rounds))
    assert run.epsilon([Release(got, q, rounds)]) <= 2.0
    assert run.epsilon([Release(got * 0.999, q, rounds)]) > 2.0


@pytest.mark.parametrize(
    ("epsilon", "delta", "sigma"),
    [(1, 1e-5, 3.730632), (0.5, 1e-5, 7.031827), (2, 1e-6, 2.230476), (8, 1e-5, 0.600229)],
)
def test_noise_of_one_release_is_that_of_the_analytic_gaussian_mechanism(epsilon, delta, sigma):
    z = Accountant(delta).calibrate(epsilon, (1.0, 1))
    assert z == pytest.approx(sigma, rel=1e-5) and z >= sigma * (1 - 1e-6)


def test_so_little_noise_that_epsilon_is_enormous_is_still_accounted():
    run = Accountant(1e-5).for_run(0.05, (0.1, 1000))
    assert 1e4 < run.epsilon([Release(0.05, 0.1, 1000)]) < math.inf


def test_a_target_out_of_reach_is_refused():
    with pytest.raises(ValueError, match="costs epsilon"):
        Accountant(1e-5).calibrate(1e-9, (1.0, 10**9))
