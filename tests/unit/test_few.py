"""A few of many."""

import numpy as np

from hpcfed.core.wording import evenly, join_few


def test_few_places_are_evenly_spread_to_the_ends():
    assert evenly(10, 3).tolist() == [0, 4, 9]
    kept = evenly(10_000, 400)
    assert (len(kept), kept[0], kept[-1]) == (400, 0, 9999) and set(np.diff(kept)) == {25, 26}


def test_all_places_are_kept_where_there_is_room():
    assert (evenly(0, 3).tolist(), evenly(1, 3).tolist(), evenly(4, 4).tolist()) == (
        [],
        [0],
        [0, 1, 2, 3],
    )


def test_no_place_is_kept_twice():
    assert all(
        len(set(evenly(n, most))) == min(n, most) for n in range(60) for most in range(1, n + 2)
    )


def test_words_beyond_the_first_are_counted():
    assert join_few(["a", "b", "c"], 3) == "a, b, c" and join_few([], 2) == ""
    assert join_few(["a", "b", "c"], 1, "; ") == "a; and 2 more"
