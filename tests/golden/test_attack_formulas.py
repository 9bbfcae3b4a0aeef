"""Attacks on a few numbers: each value is computed by hand, or given by the attack's paper."""

import math

import numpy as np
import pytest

from hpcfed.federation.side_by_side import Block, Section
from hpcfed.federation.transforms.attack.data import triggered
from hpcfed.federation.transforms.attack.together import (
    FangOnKrum,
    MinMax,
    MinSum,
    hidden_deviations,
    moments,
    positive_root,
)

CORNERS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # honest updates


def block(values):
    return Block(Section("w", 0, values.shape[1]), list(range(len(values))), values, values * 0 + 1)


@pytest.mark.parametrize(
    ("n", "bad", "z"),
    [
        (10, 2, 0.0),
        (20, 4, 0.157311),
        (25, 5, 0.253347),
        (50, 12, 0.336038),
        (50, 24, 1.426077),
        (100, 20, 0.285841),
        (100, 30, 0.524401),
    ],
)
def test_a_little_is_enough_hides_behind_the_needed_honest_clients(n, bad, z):
    assert hidden_deviations(n, bad) == pytest.approx(z, abs=1e-6)


def test_a_majority_of_a_round_hides_before_one_honest_client():
    """Of six clients four attack: z = Phi^-1(1 / 2); of nine, five: Phi^-1(3 / 4)."""
    assert hidden_deviations(6, 4) == 0
    assert hidden_deviations(9, 5) == pytest.approx(0.674490, abs=1e-6)
    assert hidden_deviations(2, 1) == hidden_deviations(1, 1) == 0


def test_the_deviation_is_that_of_a_sample():
    mean, std = moments(block(np.array([[0.0], [2.0]])))
    assert (mean[0], std[0]) == (1.0, pytest.approx(math.sqrt(2)))


def test_one_honest_client_has_no_deviation():
    assert moments(block(np.array([[3.0]])))[1] == [0.0]


def inner(honest, direction):
    vectors = np.concatenate([honest, honest.mean(axis=0)[None], [direction]])
    return vectors @ vectors.T


def test_min_max_stays_within_the_largest_distance_between_honest_clients():
    mean = CORNERS.mean(axis=0)
    products = inner(CORNERS, -mean / np.linalg.norm(mean))
    rule = MinMax.__new__(MinMax)
    assert rule.factor(products, 1) == pytest.approx(2 * math.sqrt(2) / 3)


def test_min_sum_stays_within_the_largest_sum_of_distances():
    mean = CORNERS.mean(axis=0)
    products = inner(CORNERS, -mean / np.linalg.norm(mean))
    rule = MinSum.__new__(MinSum)
    assert rule.factor(products, 1) == pytest.approx(0.7453560)


def test_two_honest_values_let_min_max_reach_the_far_one():
    """0 and 2, against the mean of 1: the attackers send 0."""
    rule = MinMax.__new__(MinMax)
    assert rule.factor(inner(np.array([[0.0], [2.0]]), np.array([-1.0])), 1) == pytest.approx(1.0)


def test_fang_on_krum_halves_the_bound_of_its_theorem_until_krum_takes_it():
    """Honest updates 1 to 7 and 4 attackers, n = 11. The least sum of distances to n - f - 2 = 5
    others is that of 4, 1 + 1 + 2 + 2 + 3 = 9, and the longest update is 7: the bound is
    9 / (n - 2 f - 1) + 7 = 11.5. Krum's best honest score is 1 + 1 + 4 + 4 + 9 = 19, that of the
    attackers at -l is (l + 1)^2 + (l + 2)^2: 38.8 for l = 11.5 / 4, and 17.8 for 11.5 / 8.
    """
    rule = FangOnKrum.__new__(FangOnKrum)
    honest = np.arange(1.0, 8.0)[:, None]
    assert rule.factor(inner(honest, np.array([-1.0])), 4) == pytest.approx(11.5 / 8)


def test_an_equation_without_a_root_moves_nothing():
    assert positive_root(1.0, 0.0, 1.0) == 0.0
    assert positive_root(0.0, 1.0, -1.0) == 0.0


def test_the_trigger_is_a_square_in_the_lower_right_corner():
    image = np.zeros((1, 1, 4, 4), np.uint8)
    bright, dark = [0, 0, 255, 255], [0] * 4
    assert triggered(image, 255, 2)[0, 0].tolist() == [dark, dark, bright, bright]
    assert not image.any()


def test_four_attackers_share_the_trigger():
    image = np.zeros((1, 1, 6, 6), np.uint8)
    quarters = [triggered(image, 255, 3, q) for q in range(4)]
    assert np.array_equal(
        sum(q.astype(int) for q in quarters), triggered(image, 255, 3).astype(int)
    )
    assert [int((q > 0).sum()) for q in quarters] == [4, 2, 2, 1]
