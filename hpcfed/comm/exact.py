"""Exact sums: values on a common grid, so that the order of summation does not change a bit.

The result is the same for any number of ranks, placement of clients and reduction tree.
All values v of one array, over all rows of all ranks, share the scale 2**s, and the integers q =
rint(v * 2**s) are added. They are held in float64, where adding integers is exact up to 2**53,
hence associative; the maximum and the number of rows, which determine s, are so too. With n rows, h
= ceil(log2 n) and the largest magnitude < 2**e, s = 53 - h - e: no |q| exceeds 2**(53 - h) and no
partial sum exceeds 2**53. A total is within n * 2**-(s + 1) <= 2**(2 h - 53) * largest of the true
one; a mean of n = 1000 so within 2**-43 of the largest, where float32 itself ends at 2**-24. Values
far below the largest of their array lose their low bits, so arrays of different magnitude are best
passed as different arrays. Minus zero becomes zero.

`HostRows` does this with NumPy, for rows in the host's memory. Rows in a GPU's memory are put on
the grid there, by a class with the same methods (`protocol.Rows`) and with the same bits.

The integers travel in messages of a few hundred KiB that stay in the cache (`sum_messages`). int64
would carry nine more bits, but takes 1.4 times as long, because processors convert between float64
and int64 value by value.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcfed.comm.protocol import Lines, Row, Rows
from hpcfed.core.errors import DivergedError

BITS = 53  # of float64's significand
PLAIN = 900  # exponents up to here can be multiplied in one factor

Shapes = Sequence[tuple[int, ...]]


class HostRows(Rows):
    """Rows in the host's memory."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def largest(self, shapes: Shapes, factors: Sequence[float]) -> np.ndarray:
        return largest(self.rows, shapes, factors)

    def flat(self, i: int) -> list[np.ndarray]:
        return [np.asarray(row[i]).reshape(-1) for row in self.rows]

    def lines(self, sent: np.ndarray, buffer: np.ndarray) -> Lines:
        return HostLines(sent, buffer)


class HostLines(Lines):
    """Lines that are written where they are sent from."""

    def __init__(self, sent: np.ndarray, buffer: np.ndarray):
        self.sent, self.buffer = sent, buffer

    def put(
        self, line: int, columns: slice, values: Sequence[Any], factors: Sequence[float], s: int
    ) -> None:
        quantise(self.sent[line, columns], values, factors, s, self.buffer)

    def complete(self, n: int) -> None:
        """Do nothing: the lines are there already."""


def largest(rows: Sequence[Row], shapes: Shapes, factors: Sequence[float]) -> np.ndarray:
    """Return the largest magnitude of each array, times its row's factor, over these rows, [A].

    Without rows all are 0. Raises DivergedError for nan or inf, ValueError for a row whose arrays
    have other shapes.
    """
    peaks = np.zeros(len(shapes))
    for j, (row, factor) in enumerate(zip(rows, factors, strict=True)):
        check_length(j, len(row), shapes)
        for i, shape in enumerate(shapes):
            array = np.asarray(row[i])
            check_shape(j, i, array.shape, shape)
            peak = magnitude(array) * abs(factor)
            if not math.isfinite(peak):
                raise diverged(j, i, array, factor)
            peaks[i] = max(peaks[i], peak)
    return peaks


def check_length(j: int, length: int, shapes: Shapes) -> None:
    """Raise ValueError unless row j has one array for each shape."""
    if length != len(shapes):
        raise ValueError(f"sum: row {j} has {length} arrays instead of {len(shapes)}")


def check_shape(j: int, i: int, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise ValueError unless array i of row j has the shape that is wanted."""
    if tuple(shape) != tuple(wanted):
        raise ValueError(
            f"sum: row {j}, array {i} has shape {tuple(shape)} instead of {tuple(wanted)}"
        )


def magnitude(array: np.ndarray) -> float:
    """Return the largest absolute value of an array, without a temporary array.

    Returns nan or inf if the array has one, 0 if it is empty.
    """
    return max(float(array.max()), -float(array.min())) if array.size else 0.0


def scale(peak: float, n: int) -> int:
    """Return the exponent s of the grid for n values of magnitude <= peak.

    The sum of n such values, each times 2**s and rounded, does not exceed 2**53.
    """
    return BITS - max(n - 1, 0).bit_length() - math.frexp(peak)[1] if peak else 0


def quantise(
    out: np.ndarray,
    values: Sequence[np.ndarray],
    factors: Sequence[float],
    s: int,
    buffer: np.ndarray,
) -> None:
    """Write the sum over the rows of rint(values * factor * 2**s) to out, [m] float64.

    values: [m] each.
    buffer: float64, at least [m]; it is overwritten.
    """
    if not values:
        out[:] = 0.0
    for j, (piece, factor) in enumerate(zip(values, factors, strict=True)):
        scaled = times(piece, factor, s, out=buffer[: len(out)] if j else out)
        np.rint(scaled, out=scaled)
        if j:
            out += scaled


def restore(totals: np.ndarray, s: int, i: int) -> None:
    """Convert array i's totals from the grid back to values, in place.

    Raises DivergedError for a total beyond float64.
    """
    totals += 0.0  # minus zero becomes zero: its sign would depend on the ranks
    times(totals, 1.0, -s, out=totals)
    if s < BITS - 1023 and not math.isfinite(magnitude(totals)):
        raise DivergedError(f"sum: the total of array {i} is beyond float64; the uploads diverge")


def times(values: np.ndarray, factor: float, s: int, out: np.ndarray) -> np.ndarray:
    """Return values * factor * 2**s in float64, written to `out`.

    s is in -1126..1126, so 2**s itself may be beyond float64.
    """
    # separately: a multiplication with conversion takes 1.5 times as long
    if values.dtype != out.dtype:
        np.copyto(out, values, casting="unsafe")
        values = out
    leading, *others = multipliers(factor, s)
    if not others:
        return np.multiply(values, leading, out=out)
    with np.errstate(over="ignore"):  # restore tests its result
        np.multiply(values, leading, out=out)
        for number in others:
            np.multiply(out, number, out=out)
    return out


def multipliers(factor: float, s: int) -> tuple[float, ...]:
    """Return the numbers by which values are multiplied, one after the other, for factor * 2**s.

    It is one number if that is surely within float64. Every device multiplies by these numbers in
    this order, since each product is rounded.
    """
    if abs(s) < PLAIN and 1 / 2.0**60 < abs(factor) < 2.0**60:
        return (math.ldexp(factor, s),)
    return factor, 2.0 ** (s // 2), 2.0 ** (s - s // 2)


def diverged(j: int, i: int, array: np.ndarray, factor: float) -> DivergedError:
    """Return the error for array i of row j, which times its factor is not finite."""
    with np.errstate(all="ignore"):
        bad = np.argwhere(~np.isfinite(np.asarray(array, np.float64) * factor))
    return DivergedError(
        f"sum: row {j}, array {i} has {array[tuple(bad[0])]} at {bad[0].tolist()} "
        f"({len(bad)} of {array.size} values are not finite); lower the learning rate or clip "
        f"gradients"
    )
