"""Clients on ranks: heaviest first, each to the rank with the least load."""

import pytest

from hpcfed import rng
from hpcfed.cluster.placement import makespan, place


def test_the_heaviest_client_goes_first_and_the_rest_fill_up():
    assert place([1, 5, 2, 4], 2) == [0, 0, 1, 1]  # 5 | 4, then 2 to the 4, then 1 to the 5


def test_equal_clients_are_dealt_out_by_id():
    assert place([1.0] * 7, 3) == [0, 1, 2, 0, 1, 2, 0]


def test_more_ranks_than_clients_leave_ranks_idle():
    assert place([3.0, 1.0], 5) == [0, 1]


def test_one_rank_holds_everybody():
    assert place([3.0, 1.0, 0.0], 1) == [0, 0, 0]


def test_the_makespan_is_the_load_of_the_most_loaded_rank():
    assert makespan([1, 5, 2, 4], [0, 0, 1, 1]) == 6
    assert makespan([], []) == 0.0


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_makespan_is_within_four_thirds_of_the_bound(ranks: int):
    costs = rng.stream(0, "costs", ranks).lognormal(size=40).tolist()
    bound = max(max(costs), sum(costs) / ranks)
    assert makespan(costs, place(costs, ranks)) <= 4 / 3 * bound
