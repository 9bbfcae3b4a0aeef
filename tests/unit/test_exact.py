"""Exact sums: golden values by hand, the stated bound, and the same bits whatever the order and the
ranks.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcfed.comm import Serial, sum_messages
from hpcfed.comm.exact import largest, quantise, restore, scale
from hpcfed.comm.sum_messages import MESSAGE
from hpcfed.core.errors import DivergedError
from tests.threads import spmd

pytestmark = pytest.mark.quick

TINY = 5e-324  # the smallest subnormal
ADVERSE = [
    0.0,
    -0.0,
    TINY,
    -TINY,
    2.2e-308,
    -3e-310,
    1e-30,
    -1e-30,
    1.0,
    0.1,
    -0.1,
    1e30,
    -1e30,
    1e300,
    -1e300,
]
values = st.one_of(st.sampled_from(ADVERSE), st.floats(-1e300, 1e300))
rows_of_two = st.lists(st.tuples(values, values), max_size=9)


def total(values: list[float]) -> float:
    """The exact sum of scalars, a row each."""
    return float(Serial().sum([[np.array(value)] for value in values], [()])[0])


def on_grid(rows: list[list[float]], s: int) -> list[float]:
    out = np.empty(len(rows[0]))
    quantise(out, [np.array(row) for row in rows], [1.0] * len(rows), s, np.empty(9))
    return out.tolist()


def test_the_scale_leaves_room_for_all_rows():
    assert scale(1.0, 1) == 52  # 1 = 0.5 * 2**1: e = 1, no headroom
    assert scale(1.0, 2) == 51
    assert scale(1.0, 3) == scale(1.0, 4) == 50
    assert scale(0.75, 4) == 51
    assert scale(TINY, 1) == 53 + 1073
    assert scale(1.7e308, 1024) == 53 - 10 - 1024
    assert scale(0.0, 5) == 0


def test_fixed_point_by_hand():
    rows = [[1.0, 0.25], [-0.5, 2.0**-52]]  # s = 51: a quantum is 2**-51
    assert largest([[np.array(row)] for row in rows], [(2,)], [1.0, 1.0]).tolist() == [1.0]
    assert on_grid(rows, 51) == [2**50, 2**49]  # rint(0.5) is 0
    totals = np.array([2.0**50, 2.0**49])
    restore(totals, 51, 0)
    assert totals.tolist() == [0.5, 0.25]


def test_factors_multiply_whole_rows():
    rows = [[np.array([1.0, 2.0], np.float32)], [np.array([10.0, 20.0], np.float32)]]
    assert largest(rows, [(2,)], [3.0, -0.5]).tolist() == [10.0]
    assert Serial().sum(rows, [(2,)], [3.0, 0.5])[0].tolist() == [8.0, 16.0]


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([], 0.0),
        ([1.0, 2.0, 3.0], 6.0),
        ([0.1] * 8, round(0.1 * 2**53) * 2.0**-50),  # 0.1 < 2**-3, 8 rows: the quantum is 2**-53
        ([1e300, 1.0, -1e300], 0.0),  # 1 is far below the quantum of 1e300
        ([1e30, -1e30], 0.0),
        ([TINY, TINY, TINY], 3 * TINY),
        ([2.2e-308, -TINY], 2.2e-308 - TINY),
        ([1e-30], 1e-30),
        ([1e300], 1e300),
        ([1.7976931348623157e308], 1.7976931348623157e308),
    ],
)
def test_golden_sums(values, want):
    assert total(values) == want


def test_values_are_rounded_to_the_nearest_quantum_and_ties_to_even():
    parts = [0.5, 0.75, 1.5, -0.75]  # of the quantum 2**-52 that one row with the maximum 1 has
    assert on_grid([[1.0] + [part * 2.0**-52 for part in parts]], 52) == [2**52, 0, 1, 2, -1]


def test_minus_zero_becomes_zero():
    for ranks in (1, 2, 3):  # on 3 ranks one has no row, hence a plain zero to add
        totals = spmd(
            ranks, lambda comm: comm.sum([[np.array(-0.0)]] if comm.rank < 2 else [], [()])[0]
        )
        assert all(math.copysign(1.0, value) == 1.0 for value in totals)


def test_each_array_has_its_own_scale():
    big, small = Serial().sum([[np.array([1e30]), np.array([1e-30])]] * 3, [(1,), (1,)])
    assert big.tolist() == [pytest.approx(3e30, rel=2**-50)] and small.tolist() == [
        pytest.approx(3e-30, rel=2**-50)
    ]


def test_all_float_types_are_summed():
    for dtype in (np.float16, np.float32, np.float64):
        assert Serial().sum([[np.array([0.5, -2.0], dtype)]] * 3, [(2,)])[0].tolist() == [1.5, -6.0]


def test_arrays_larger_than_a_message_and_not_contiguous_are_summed_completely():
    values = np.arange(2.0 * (2 * MESSAGE + 3)).reshape(-1, 2)[:, 1]
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
        assert total([top] * n) == pytest.approx(n, rel=2**-42)
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
        assert (
            abs(got[i] - math.fsum(row[i] for row in rows))
            <= n * float(quantum) + abs(got[i]) * 2.0**-52
        )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), rows_of_two, st.integers(1, 5))
def test_any_placement_and_order_of_the_rows_gives_the_same_bits(data, rows, ranks):
    arrays = [[np.array(row, np.float64), np.array(row[0])] for row in rows]
    owner = data.draw(st.lists(st.integers(0, ranks - 1), min_size=len(rows), max_size=len(rows)))
    order = data.draw(st.permutations(range(len(rows))))
    shapes = [(2,), ()]
    want = [array.tobytes() for array in Serial().sum(arrays, shapes)]
    got = spmd(
        ranks, lambda comm: comm.sum([arrays[k] for k in order if owner[k] == comm.rank], shapes)
    )
    assert all([array.tobytes() for array in totals] == want for totals in got)


class Halved:
    """Totals divided by the first one, in float32."""

    n_first = 1

    def __init__(self, shapes: list[tuple[int, ...]]):
        self.arrays = [np.empty(()), *(np.empty(shape, np.float32) for shape in shapes[1:])]

    def finish(self, i: int, start: int, total: np.ndarray) -> None:
        if i:
            total /= self.arrays[0]
            total += start == 0  # seen below: where a stretch begins is told


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_messages_in_parts_finish_each_value_once_and_the_first_arrays_before(monkeypatch, ranks):
    for name, value in (("SMALL", 4), ("MESSAGE", 12), ("PART", 3), ("CACHE", 1)):
        monkeypatch.setattr(sum_messages, name, value)
    g = np.random.default_rng(0)
    shapes = [(), (7, 3), (2,), (0,), (50,)]
    rows = [
        [np.array(2.0), *(g.normal(size=shape).astype(np.float32) for shape in shapes[1:])]
        for _ in range(4)
    ]
    plain = Serial().sum(rows, shapes)

    def fn(comm):
        mine = rows[comm.rank :: comm.size]
        return comm.sum(mine, shapes), comm.sum(mine, shapes, into=Halved(shapes))

    for totals, halved in spmd(ranks, fn):
        assert [t.tobytes() for t in totals] == [t.tobytes() for t in plain]
        assert halved[0] == 8.0
        for one, other in zip(halved[1:], plain[1:], strict=True):
            assert np.array_equal(
                one.reshape(-1)[12:], (other.reshape(-1)[12:] / 8.0).astype(np.float32)
            )
