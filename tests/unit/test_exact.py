"""Exact sums: golden values by hand, the stated bound, and the same bits whatever the order and the ranks."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcfed.comm import Serial, spmd
from hpcfed.comm.exact import CHUNK, largest, quantise, restore, scale
from hpcfed.errors import DivergedError

TINY = 5e-324  # the smallest subnormal
ADVERSE = [0.0, -0.0, TINY, -TINY, 2.2e-308, -3e-310, 1e-30, -1e-30, 1.0, 0.1, -0.1, 1e30, -1e30,
           1e300, -1e300]
values = st.one_of(st.sampled_from(ADVERSE), st.floats(-1e300, 1e300))
rows_of_two = st.lists(st.tuples(values, values), max_size=9)


def total(values: list[float]) -> float:
    """The exact sum of scalars, a row each."""
    return float(Serial().sum([[np.array(value)] for value in values], [()])[0])


def test_the_scale_leaves_room_for_all_rows():
    assert scale(1.0, 1) == 61  # 1 = 0.5 * 2**1: e = 1, no headroom
    assert scale(1.0, 2) == 60
    assert scale(1.0, 3) == scale(1.0, 4) == 59
    assert scale(0.75, 4) == 60
    assert scale(TINY, 1) == 62 + 1073
    assert scale(1.7e308, 1024) == 62 - 10 - 1024
    assert scale(0.0, 5) == 0


def test_fixed_point_by_hand():
    rows = [[np.array([1.0, 0.25])], [np.array([-0.5, 2.0**-61])]]  # s = 60: a quantum is 2**-60
    assert largest(rows, [(2,)]).tolist() == [1.0]
    assert quantise(rows, [(2,)], [60]).tolist() == [2**59, 2**58, 2]  # rint(0.5) is 0; last: number of rows
    assert restore(np.array([2**59, 2**58]), [(2,)], [60])[0].tolist() == [0.5, 0.25]


@pytest.mark.parametrize(("values", "want"), [
    ([], 0.0),
    ([1.0, 2.0, 3.0], 6.0),
    ([0.1] * 10, 1.0),  # the floats' true sum is 1 + 5.6e-17; a loop in float64 gives 0.9999999999999999
    ([1e300, 1.0, -1e300], 0.0),  # 1 is far below the quantum of 1e300
    ([1e30, -1e30], 0.0),
    ([TINY, TINY, TINY], 3 * TINY),
    ([2.2e-308, -TINY], 2.2e-308 - TINY),
    ([1e-30], 1e-30),
    ([1e300], 1e300),
    ([1.7976931348623157e308], 1.7976931348623157e308),
])
def test_golden_sums(values, want):
    assert total(values) == want


def test_values_are_rounded_to_the_nearest_quantum_and_ties_to_even():
    parts = [0.5, 0.75, 1.5, -0.75]  # of the quantum 2**-61 that one row with the maximum 1 has
    row = np.array([1.0] + [part * 2.0**-61 for part in parts])
    assert quantise([[row]], [(5,)], [61]).tolist() == [2**61, 0, 1, 2, -1, 1]


def test_minus_zero_becomes_zero():
    assert math.copysign(1.0, total([-0.0, -0.0])) == 1.0


def test_each_array_has_its_own_scale():
    big, small = Serial().sum([[np.array([1e30]), np.array([1e-30])]] * 3, [(1,), (1,)])
    assert big.tolist() == [3 * 1e30] and small.tolist() == [3 * 1e-30]


def test_all_float_types_are_summed():
    for dtype in (np.float16, np.float32, np.float64):
        assert Serial().sum([[np.array([0.5, -2.0], dtype)]] * 3, [(2,)])[0].tolist() == [1.5, -6.0]


def test_arrays_larger_than_a_chunk_and_not_contiguous_are_summed_whole():
    values = np.arange(2.0 * (2 * CHUNK + 3)).reshape(-1, 2)[:, 1]
    assert np.array_equal(Serial().sum([[values], [values]], [values.shape])[0], 2 * values)


def test_input_is_not_changed():
    values = np.array([1.5, -2.5])
    Serial().sum([[values]], [(2,)])
    assert values.tolist() == [1.5, -2.5]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused_with_their_place(bad):
    rows = [[np.zeros(2), np.zeros((2, 2))], [np.zeros(2), np.array([[0.0, 1.0], [bad, 1.0]])]]
    with pytest.raises(DivergedError, match=r"row 1, array 1 has .* at \[1, 0\] \(1 of 4 values"):
        Serial().sum(rows, [(2,), (2, 2)])


def test_a_total_beyond_float64_is_refused():
    with pytest.raises(DivergedError, match="array 0 is beyond float64"):
        total([1.7e308, 1.7e308])


def test_many_equal_largest_values_do_not_overflow():
    top = math.nextafter(1.0, 0.0)  # just below a power of two: the largest fixed-point value
    for n in (1, 2, 3, 1023, 1024, 1025):
        assert total([top] * n) == pytest.approx(n, rel=2**-50)
        assert total([-top] * n) == -total([top] * n)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(rows_of_two)
@example([(1e300, 1e30), (-1e300, 1e-30), (TINY, -1e30)])
def test_the_error_is_within_the_bound(rows):
    arrays = [[np.array(row)] for row in rows]
    got = Serial().sum(arrays, [(2,)])[0]
    n, peak = len(rows), max((abs(value) for row in rows for value in row), default=0.0)
    quantum = Fraction(2) ** -scale(peak, n) if peak else Fraction(0)
    for i in range(2):
        true = sum((Fraction(row[i]) for row in rows), Fraction(0))
        rounding = (abs(true) + n * quantum) / 2**53 + Fraction(TINY) / 2
        assert abs(Fraction(float(got[i])) - true) <= n * quantum / 2 + rounding
        assert abs(got[i] - math.fsum(row[i] for row in rows)) <= n * float(quantum) + abs(got[i]) * 2.0**-52


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), rows_of_two, st.integers(1, 5))
def test_any_placement_and_order_of_the_rows_gives_the_same_bits(data, rows, ranks):
    arrays = [[np.array(row, np.float64), np.array(row[0])] for row in rows]
    owner = data.draw(st.lists(st.integers(0, ranks - 1), min_size=len(rows), max_size=len(rows)))
    order = data.draw(st.permutations(range(len(rows))))
    shapes = [(2,), ()]
    want = [array.tobytes() for array in Serial().sum(arrays, shapes)]
    got = spmd(ranks, lambda comm: comm.sum([arrays[k] for k in order if owner[k] == comm.rank], shapes))
    assert all([array.tobytes() for array in totals] == want for totals in got)
