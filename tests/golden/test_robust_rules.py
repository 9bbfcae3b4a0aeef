"""Robust rules on a few numbers: each value is computed by hand, or given by the rule's paper."""

import math

import numpy as np
import pytest

from hpcfed.federation.transforms.comparison import (
    Comparison,
    exponents,
    in_units,
    products,
    squared_distances,
)
from hpcfed.federation.transforms.defence.buckets import Buckets
from hpcfed.federation.transforms.defence.clipping import CentredClipping, NormBound
from hpcfed.federation.transforms.defence.fltrust import FLTrust
from hpcfed.federation.transforms.defence.foolsgold import unlike
from hpcfed.federation.transforms.defence.geometric_median import GeometricMedian
from hpcfed.federation.transforms.defence.krum import Bulyan, Krum, MultiKrum, scores
from hpcfed.federation.transforms.defence.median import Median, TrimmedMean
from hpcfed.federation.transforms.defence.rule import attackers_among

FIVE = np.array([[0.0], [1.0], [2.0], [3.0], [100.0]])  # the last one is an attacker's
SEVEN = np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [100.0]])
ONE = np.array([1])  # attacker, for each value
TRIANGLE = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]])


def gram(vectors):
    bits = exponents(np.abs(vectors).max(axis=1))
    return in_units(products(vectors, bits), bits)


def compare(vectors, attackers=1, weights=None, server=()):
    complete = np.concatenate([vectors, *[np.atleast_2d(v) for v in server]])
    return Comparison(
        gram(complete), np.ones(len(vectors)) if weights is None else weights, attackers
    )


def result(rule, vectors, **more):
    """The update that the server gets."""
    server = more.get("server", ())
    choice = rule.choose(compare(vectors, **more))
    changes = choice.factors[:, None] * vectors
    for amount, vector in zip(choice.server, server, strict=False):
        changes = changes + amount * np.asarray(vector)
    return (choice.weights[:, None] * changes).sum(axis=0) / choice.weights.sum()


def test_the_median_of_five_is_the_third():
    assert Median().combine(FIVE, np.ones((5, 1)), ONE) == [2.0]


def test_the_median_of_four_is_the_mean_of_the_two_in_the_middle():
    assert Median().combine(FIVE[:4], np.ones((4, 1)), ONE) == [1.5]


@pytest.mark.parametrize("weight", [1 / 6, 0.1, 1 / 3, 7 / 11, 1e-30])
def test_rounded_sums_of_equal_weights_leave_the_median_in_the_middle(weight: float):
    """Six times a sixth is not 1 in floating-point numbers."""
    for n in range(2, 60):
        values, weights = np.arange(float(n))[:, None], np.full((n, 1), weight)
        assert Median().combine(values, weights, ONE) == [(n - 1) / 2], n


def test_a_weighted_median_has_half_of_the_weight_on_each_side():
    weights = np.array([[1.0], [1.0], [1.0], [1.0], [5.0]])
    assert Median().combine(FIVE, weights, ONE) == [100.0]
    assert Median().combine(FIVE, np.array([[3.0], [1], [1], [0], [1]]), ONE) == [0.5]


def test_values_without_weight_do_not_count():
    weights = np.array([[1.0], [1.0], [1.0], [0.0], [0.0]])
    assert Median().combine(FIVE, weights, ONE) == [1.0]
    assert TrimmedMean().combine(FIVE, weights, ONE) == [1.0]


def test_the_trimmed_mean_leaves_out_the_smallest_and_the_largest():
    assert TrimmedMean().combine(FIVE, np.ones((5, 1)), ONE) == [2.0]


def test_the_trimmed_mean_leaves_out_a_share_of_the_weight():
    """Weights 1, 1, 2: a third of 4 on each side leaves 2/3 of client 1 and 2/3 of client 2."""
    values, weights = np.array([[0.0], [3.0], [9.0]]), np.array([[1.0], [1.0], [2.0]])
    assert TrimmedMean().combine(values, weights, ONE) == pytest.approx([6.0])


def test_krum_takes_the_update_nearest_to_others():
    assert scores(squared_distances(gram(FIVE)), 1).tolist() == [5, 2, 2, 5, 19013]
    assert result(Krum(), FIVE) == [1.0]


def test_multi_krum_averages_the_best():
    assert result(MultiKrum(2), FIVE) == [1.5]
    assert MultiKrum(5).choose(compare(FIVE)).weights.sum() == 2  # n - f - 2


def test_bulyan_chooses_by_krum_and_averages_around_the_median():
    chosen = Bulyan().choose(compare(SEVEN)).weights
    assert chosen.tolist() == [1, 1, 1, 1, 1, 0, 0]
    assert Bulyan().combine(SEVEN, chosen[:, None], ONE) == [2.0]


@pytest.mark.parametrize(
    ("iterations", "value"), [(0, 21.2), (1, 7.336368), (2, 3.186526), (3, 2.757063), (4, 2.600306)]
)
def test_weiszfelds_method_approaches_the_median(iterations, value):
    assert result(GeometricMedian(1e-9, iterations), FIVE)[0] == pytest.approx(value, abs=2e-5)


def test_the_geometric_median_of_a_triangle():
    rule = GeometricMedian(1e-9, 1)
    assert result(rule, TRIANGLE) == pytest.approx([1.027316, 0.912904], abs=2e-6)
    point = result(GeometricMedian(1e-9), TRIANGLE)
    assert point == pytest.approx([0.695789, 0.751176], abs=2e-6)
    total = np.linalg.norm(TRIANGLE - point, axis=1).sum()
    assert total == pytest.approx(math.sqrt(25 + 12 * math.sqrt(3)))


@pytest.mark.parametrize(("honest", "attackers", "after_four"), [(14, 6, 14.252), (11, 9, 268.283)])
def test_far_attackers_of_less_than_half_of_the_weight_do_not_move_the_geometric_median(
    honest, attackers, after_four
):
    """Honest updates of 0, attackers' of 1000: the sum of distances is least at 0."""
    vectors = np.array([[0.0]] * honest + [[1000.0]] * attackers)
    assert result(GeometricMedian(1e-5), vectors)[0] == pytest.approx(0, abs=1e-3)
    assert result(GeometricMedian(1e-5, 4), vectors)[0] == pytest.approx(after_four, abs=1e-2)


@pytest.mark.parametrize(("iterations", "value"), [(1, 0.8), (2, 1.28), (3, 1.568)])
def test_centred_clipping_moves_by_at_most_the_clip(iterations, value):
    rule = CentredClipping(1.0, iterations)
    assert result(rule, FIVE, server=([0.0],))[0] == pytest.approx(value, abs=1e-5)


def test_centred_clipping_starts_at_the_last_update():
    """From 2: -1, -1, 0, 1, 1 are added."""
    assert result(CentredClipping(1.0, 1), FIVE, server=([2.0],)) == pytest.approx([2.0])


def test_a_bound_shortens_the_longest():
    assert result(NormBound(10.0), FIVE) == pytest.approx([3.2])
    assert result(NormBound(None), FIVE) == pytest.approx([(0 + 1 + 2 + 2 + 2) / 5])


def test_foolsgold_drops_clients_that_act_alike():
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert unlike(compare(vectors).cosines).tolist() == [0.0, 0.0, 1.0]


def test_foolsgold_drops_all_if_all_are_alike():
    assert unlike(compare(np.ones((3, 2))).cosines).tolist() == [0.0, 0.0, 0.0]


def test_fltrust_weighs_by_the_angle_to_the_servers_update():
    vectors = np.array([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [1.0, 1.0]])
    rule, own = FLTrust(), [1.0, 0.0]
    choice = rule.choose(compare(vectors, server=(own,)))
    assert choice.weights == pytest.approx([1, 0, 0, 0.7071068], abs=1e-6)
    assert result(rule, vectors, server=(own,)) == pytest.approx([0.8786797, 0.2928932], abs=1e-6)


def test_fltrust_moves_nowhere_if_nobody_is_trusted():
    choice = FLTrust().choose(compare(np.array([[-1.0], [-2.0]]), server=([1.0],)))
    assert not choice.weights.any()


def test_flame_keeps_the_majority():
    from hpcfed.federation.transforms.defence.flame import majority  # imports scikit-learn

    angles = np.array([0.0, 0.02, -0.02, 0.03, 3.0])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert majority(1 - compare(vectors).cosines).tolist() == [True, True, True, True, False]


def test_groups_of_one_change_nothing():
    rule = Buckets(5, 1, np.random.default_rng(0))
    assert np.array_equal(rule.compare(compare(FIVE)).gram, compare(FIVE).gram)


def test_groups_have_the_averages_of_their_clients():
    rule, weights = Buckets(4, 2, np.random.default_rng(0)), np.array([1.0, 3.0, 1.0, 1.0])
    values = FIVE[:4]
    averages, sums = rule.average(values, weights[:, None], [0, 1, 2, 3])
    for b in range(2):
        members = np.flatnonzero(rule.groups == b)
        expected = np.average(values[members, 0], weights=weights[members])
        assert averages[b, 0] == pytest.approx(expected)
        assert sums[b, 0] == weights[members].sum()
    compared = rule.compare(compare(values, weights=weights))
    assert compared.gram == pytest.approx(averages @ averages.T, abs=1e-5)


def test_a_share_of_clients_is_rounded_down():
    assert attackers_among(10, 0.3) == 3
    assert attackers_among(9, 0.3) == 2
    assert attackers_among(4, 0.2) == 1  # also of fewer than five clients, as when one drops out


def test_products_with_the_server_need_no_pairs_of_clients():
    vectors = np.random.default_rng(0).standard_normal((5, 5000))
    bits = exponents(np.abs(vectors).max(axis=1))
    every, few = products(vectors, bits), products(vectors, bits, pairs=False, server=2)
    needed = np.eye(5, dtype=bool)
    needed[3:] = needed[:, 3:] = True
    assert np.array_equal(few[needed], every[needed]) and not few[~needed].any()


def test_products_do_not_depend_on_the_order_of_values():
    g = np.random.default_rng(0)
    vectors = g.standard_normal((6, 5000))
    bits = exponents(np.abs(vectors).max(axis=1))
    order = np.concatenate([g.permutation(4096), 4096 + g.permutation(904)])
    assert np.array_equal(products(vectors, bits), products(vectors[:, order], bits))
    exact = vectors @ vectors.T
    assert in_units(products(vectors, bits), bits) == pytest.approx(exact, rel=1e-4, abs=1e-2)
