"""Robust K-means and CFL's cut, by hand."""

import math

import numpy as np
import pytest
import torch

from hpcfed.algorithms.clusters import cfl, kmeans
from hpcfed.core.params import Params


def points(*values: float) -> Params:
    return Params(w=torch.tensor(values, dtype=torch.float32)[:, None])


def every(name: str) -> bool:
    return True


@pytest.mark.parametrize(
    "share, want",
    [(0.0, 21.2), (0.2, 2.0), (0.5, 2.0), (0.19, 21.2)],  # of five values one fifth is one
)
def test_a_trimmed_mean_leaves_out_a_share_at_both_ends(share: float, want: float):
    values = torch.tensor([3.0, 100.0, 0.0, 2.0, 1.0])
    assert kmeans.trimmed_mean(values, share).item() == pytest.approx(want, rel=1e-6)


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    assert kmeans.trimmed_mean(torch.tensor([9.0, 1.0, 2.0, -5.0]), 0.5).item() == 1.5


def test_trimming_is_by_coordinate():
    rows = torch.tensor([[0.0, 9.0], [1.0, 1.0], [9.0, 0.0]])
    assert kmeans.trimmed_mean(rows, 0.34).tolist() == [1.0, 1.0]


def test_without_trimming_it_is_k_means_by_hand():
    """From 0 and 4: {0, 1} and {5, 9}, then {0, 1} and {5, 9} again: 0.5 and 7."""
    centres, members = kmeans.lloyd(points(0, 1, 5, 9), points(0, 4), every, 0.0, 3)
    assert centres["w"][:, 0].tolist() == [0.5, 7.0] and members == [0, 0, 1, 1]


def test_a_planted_outlier_does_not_move_a_centre_and_an_empty_cluster_stays():
    distances = points(0, 1, 2, 3, 4, 1000)
    plain, robust = (kmeans.move(distances, points(2, -7), [0] * 6, s)["w"] for s in (0.0, 0.2))
    assert plain[0].item() > 100 and robust[:, 0].tolist() == [2.5, -7.0]


def test_two_groups_that_pull_apart_are_cut_exactly():
    updates = np.array([[1, 0.1], [-1, 0], [1, 0], [-1, 0.2], [0.9, 0]])
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    for linkage in ("complete", "average"):
        assert cfl.bipartition(unit @ unit.T, linkage) == ([0, 2, 4], [1, 3])


def test_ties_give_two_groups_that_are_the_same_each_time():
    groups = cfl.bipartition(np.ones((4, 4)), "complete")
    assert groups == cfl.bipartition(np.ones((4, 4)), "complete")
    assert sorted(groups[0] + groups[1]) == [0, 1, 2, 3] and groups[1]


def test_the_gap_is_that_of_the_most_alike_pair_across_the_cut():
    alike = np.array([[1, 0.9, -1], [0.9, 1, 0.5], [-1, 0.5, 1]])
    assert cfl.gap(alike, [0, 1], [2]) == pytest.approx(math.sqrt(0.25))
    assert cfl.gap(alike, [0], [2]) == 1
