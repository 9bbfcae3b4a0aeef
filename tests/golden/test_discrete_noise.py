"""Distributed and correlated noise: values by hand, and of public implementations."""

import math

import numpy as np
import pytest

from hpcfed.federation.transforms import hadamard
from hpcfed.federation.transforms.privacy import correlated, discrete


def stream():
    return np.random.default_rng(7)


# Rotation


def test_hadamard_of_two_values_is_their_sum_and_difference():
    assert hadamard.transform(np.array([3.0, 1.0])) == pytest.approx([8**0.5, 2**0.5])


@pytest.mark.parametrize("n", [1, 2, 5, 1000])
def test_rotating_back_restores_the_vector_and_keeps_its_norm(n):
    values, D = stream().normal(size=n), hadamard.padded(n)
    signs = hadamard.draw_signs(stream(), D)
    rotated = hadamard.rotate(values, signs)
    assert D in (1, 2, 8, 1024)
    assert np.linalg.norm(rotated) == pytest.approx(np.linalg.norm(values))
    assert hadamard.rotate_back(rotated, signs, n) == pytest.approx(values)


def test_a_hadamard_transform_refuses_other_lengths():
    with pytest.raises(ValueError, match="power of two"):
        hadamard.transform(np.zeros(3))


# Grid


def test_bounds_of_rounded_vectors():
    assert discrete.rounded_norm(10, 4) == pytest.approx(10.583005)
    assert discrete.rounded_norm(10, 4, beta=0) == 12
    assert discrete.rounded_norm(100, 1024) == pytest.approx(101.843016)
    assert discrete.rounded_norm(100, 1024, beta=0) == 132


def test_rounding_stays_within_its_bound_and_has_the_right_mean():
    values = np.array([0.25, -1.5, 2.0])
    bound = discrete.rounded_norm(np.linalg.norm(values), 3)
    g = stream()
    rounded = np.array([discrete.round_at_random(values, bound, g) for _ in range(4000)])
    assert (np.linalg.norm(rounded, axis=1) <= bound).all()
    assert rounded.mean(0) == pytest.approx(values, abs=0.05)
    assert set(rounded[:, 1]) == {-2, -1}


def test_a_rounded_vector_is_drawn_again_until_it_is_within_the_bound():
    rounded = [discrete.round_at_random(np.full(4, 0.5), 1.0, stream()) for _ in range(20)]
    assert all(np.abs(r).sum() <= 1 for r in rounded)


def test_the_scale_is_the_power_of_two_below_the_formula():
    assert discrete.scale_bound(16, 100, 1024, 1.0, 0.1) == pytest.approx(2496.7223)
    assert discrete.find_scale(16, 100, 1024, 1.0, 0.1) == 2048
    with pytest.raises(ValueError, match="4 bits are too few"):
        discrete.find_scale(4, 100, 4, 1.0, 0.1)


def test_sums_wrap_modulo_the_ring():
    assert discrete.wrap(np.array([127, 128, -128, -129, 256]), 8).tolist() == [
        127,
        -128,
        -128,
        127,
        0,
    ]
    parts = stream().integers(-300, 300, (5, 100))
    wrapped = discrete.wrap(discrete.wrap(parts, 8).sum(0), 8)
    assert (wrapped == discrete.wrap(parts.sum(0), 8)).all()


# Samplers


@pytest.mark.parametrize("variance", [1, 4, 10])
def test_a_discrete_gaussian_has_its_probabilities(variance):
    x = discrete.discrete_gaussian(variance, 100_000, stream())
    support = np.arange(-60, 61)
    p = np.exp(-(support**2) / (2 * variance))
    p /= p.sum()
    for value in (-2, 0, 1, 3):
        assert (x == value).mean() == pytest.approx(p[60 + value], abs=0.005)
    assert x.var() == pytest.approx((p * support**2).sum(), rel=0.03)


def test_large_and_no_variances():
    x = discrete.discrete_gaussian(42_000, 50_000, stream())
    assert x.std() == pytest.approx(42_000**0.5, rel=0.02)
    assert discrete.discrete_gaussian(0, 3, stream()).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="variance"):
        discrete.discrete_gaussian(discrete.LARGEST**2 + 1, 1, stream())


def test_bernoulli_of_an_exponential():
    num, den = np.full(50_000, 5), np.full(50_000, 2)
    assert discrete.bernoulli_exp(num, den, stream()).mean() == pytest.approx(
        math.exp(-2.5), abs=0.004
    )
    assert discrete.bernoulli_exp(num * 0, den, stream()).all()


def test_skellam_noise_has_its_variance():
    x = discrete.draw_noise("skellam", 0.5, 8, 100_000, stream())
    assert x.var() == pytest.approx(16, rel=0.02)
    assert x.mean() == pytest.approx(0, abs=0.05)


# Divergences


def test_sums_of_discrete_gaussians_are_nearly_discrete_gaussian():
    assert discrete.excess(2, 1.0) == pytest.approx(10 * math.exp(-(math.pi**2)))
    assert discrete.excess(100, 1.0) == pytest.approx(5.47789e-4, rel=1e-5)
    assert discrete.excess(100, 0.5) == pytest.approx(9.70116, rel=1e-5)


def epsilon(mechanism, q=1.0, rounds=1):
    rdp = pytest.importorskip("dp_accounting.rdp")
    divergences = discrete.divergences_of(mechanism, 100, 1.0, 0.1, 1000.0, 1024, q)
    return rdp.compute_epsilon(discrete.ORDERS, np.array(divergences) * rounds, 1e-5)[0]


@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "skellam"])
def test_epsilon_of_one_sum_is_slightly_above_that_of_continuous_noise(mechanism):
    assert epsilon(mechanism) == pytest.approx(4.73194, abs=2e-5)
    assert epsilon(mechanism) > 4.72851  # of Gaussian noise of the same deviation


def test_sampling_of_clients_lowers_epsilon():
    assert epsilon("discrete-gaussian", 0.01, 100) < epsilon("discrete-gaussian", 0.02, 100)
    assert epsilon("discrete-gaussian", 0.01, 1) < epsilon("discrete-gaussian")
    assert discrete.sampled(lambda order: 0.5 * order, 0.0, 2) == 0
    # at order 2: log(1 - q^2 + q^2 exp(divergence)), by hand
    want = math.log(1 - 0.01 + 0.01 * math.e)
    assert discrete.sampled(lambda order: 0.5 * order, 0.1, 2) == pytest.approx(want)


# Correlated noise


def test_coefficients_of_the_square_root_and_its_inverse():
    c = correlated.square_root_coefficients(8)
    assert c[:4].tolist() == [1, 1 / 2, 3 / 8, 5 / 16]
    assert correlated.inverse(c, 4).tolist() == [1, -1 / 2, -1 / 8, -1 / 16]
    assert c[:4] @ c[:4] == 1.48828125
    assert correlated.sensitivity(c) ** 2 == pytest.approx(1.71837926)
    assert correlated.sensitivity(c[:4], participations=3) ** 2 == pytest.approx(3 * 1.48828125)
    prefixes = np.cumsum(np.cumsum(correlated.inverse(c, 4)) ** 2)
    assert prefixes == pytest.approx([1, 1.25, 1.390625, 1.48828125])


def mean_error(coefficients: np.ndarray, n: int) -> float:
    """The mean over n rounds of the variance of a prefix sum, at equal privacy.

    Independent noise has (n + 1) / 2.
    """
    prefix = correlated.quotient(coefficients, np.ones(n))  # coefficients of A C^-1
    weights = np.arange(n, 0, -1) / n
    return float(coefficients @ coefficients * (weights @ prefix**2))


def test_bands_lower_the_error_as_in_jax_privacy():
    assert correlated.banded_coefficients(1, 100) == (1.0,)
    c = np.array(correlated.banded_coefficients(8, 100))
    # jax-privacy 2.0.0, toeplitz.optimize_banded_toeplitz(n=100, bands=8), after 500 steps
    assert c[:4] == pytest.approx([1, 0.61655418, 0.51530006, 0.45905297], abs=1e-4)
    assert mean_error(np.ones(1), 100) == pytest.approx(50.5)
    errors = [mean_error(v, 100) for v in (c, correlated.square_root_coefficients(8))]
    assert errors == pytest.approx([9.767663, 10.528882])


def test_the_number_of_participations():
    assert [correlated.participations(n, 4) for n in (1, 4, 5, 8)] == [1, 1, 2, 2]


def test_the_nodes_of_a_tree_cover_each_prefix_once():
    for t in range(40):
        rounds = [
            r
            for level, index in correlated.tree_nodes(t)
            for r in range(index << level, (index + 1) << level)
        ]
        assert sorted(rounds) == list(range(t))
        assert len(correlated.tree_nodes(t)) <= correlated.tree_height(40)
    assert correlated.tree_changes(3) == ([(2, 0)], [(0, 2), (1, 0)])


def test_the_height_of_a_tree_is_dp_accountings():
    accounting = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    for n, z, order, want in ((4, 1.0, 2, 3.0), (4, 1.0, 4, 6.0), (5, 1.0, 2, 3.0)):
        relation = accounting.NeighboringRelation.REPLACE_SPECIAL
        accountant = rdp.RdpAccountant([order], relation)
        accountant.compose(accounting.SingleEpochTreeAggregationDpEvent(z, n))
        assert accountant._rdp[0] == pytest.approx(want)
        assert order * correlated.tree_height(n) / (2 * z**2) == pytest.approx(want)
