"""Exact sums: integer fixed point, so that no rank count, placement or reduction tree changes a bit.

All values v of one array, over all rows of all ranks, share the scale 2**s, and q = rint(v * 2**s) is summed
in int64. Integer sums are associative; the maximum and the number of rows, which determine s, are so too.
With n rows, h = ceil(log2 n) and the largest magnitude < 2**e, s = 62 - h - e: no |q| exceeds 2**(62 - h) and
no partial sum exceeds 2**62. A total is within n * 2**-(s + 1) <= 2**(2 h - 62) * largest of the true one,
then rounded once to float64; values far below the largest of their array lose their low bits, so arrays of
different magnitude are best passed as different arrays. Minus zero becomes zero.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from hpcfed.comm.protocol import Row
from hpcfed.errors import DivergedError

BITS = 62  # of int64: the sign and one bit to spare
CHUNK = 1 << 16  # values converted at a time: 512 KiB of float64 stay in the cache

Shapes = Sequence[tuple[int, ...]]
Reduce = Callable[[np.ndarray], np.ndarray]  # over all ranks, elementwise; may work in place


def exact_sum(rows: Sequence[Row], shapes: Shapes, rank: int, size: int, highest: Reduce, total: Reduce,
              ) -> list[np.ndarray]:
    """`Comm.sum` by two reductions: highest (maximum, float64, [A + R]) and total (sum, int64, flat)."""
    counts = np.zeros(size)
    counts[rank] = len(rows)
    small = highest(np.concatenate([largest(rows, shapes), counts]))
    n = int(small[len(shapes):].sum())
    scales = [scale(float(peak), n) for peak in small[: len(shapes)]]
    flat = total(quantise(rows, shapes, scales))
    if flat[-1] != n:
        raise RuntimeError(f"the sum over {size} ranks holds {flat[-1]} rows, but the ranks gave {n}: "
                           "ranks made different calls, or the MPI library lost a contribution")
    return restore(flat[:-1], shapes, scales)


def largest(rows: Sequence[Row], shapes: Shapes) -> np.ndarray:
    """The largest magnitude of each array over these rows, [A] float64; 0 without rows.

    Raises DivergedError for nan or inf, ValueError for a row whose arrays have other shapes.
    """
    peaks = np.zeros(len(shapes))
    for j, row in enumerate(rows):
        if len(row) != len(shapes):
            raise ValueError(f"sum: row {j} has {len(row)} arrays instead of {len(shapes)}")
        for i, shape in enumerate(shapes):
            array = np.asarray(row[i])
            if array.shape != tuple(shape):
                raise ValueError(f"sum: row {j}, array {i} has shape {array.shape} instead of {tuple(shape)}")
            peak = magnitude(array)
            if not math.isfinite(peak):
                raise DivergedError(_where(j, i, array))
            peaks[i] = max(peaks[i], peak)
    return peaks


def magnitude(array: np.ndarray) -> float:
    """The largest |value|, without a temporary array; nan or inf if one is in it, 0 for an empty array."""
    return max(float(array.max()), -float(array.min())) if array.size else 0.0


def scale(peak: float, n: int) -> int:
    """s, such that n values of magnitude <= peak, each times 2**s and rounded, have a sum within 2**62."""
    return BITS - max(n - 1, 0).bit_length() - math.frexp(peak)[1] if peak else 0


def quantise(rows: Sequence[Row], shapes: Shapes, scales: Sequence[int]) -> np.ndarray:
    """The rows' sum in fixed point: all arrays flat behind one another, then the number of rows, int64."""
    sizes = [math.prod(shape) for shape in shapes]
    flat = np.zeros(sum(sizes) + 1, np.int64)
    flat[-1] = len(rows)
    parts = np.split(flat, np.cumsum(sizes))  # views
    buffer = np.empty(min(CHUNK, max(sizes, default=0)))
    for row in rows:
        for i, s in enumerate(scales):
            values = np.asarray(row[i]).reshape(-1)
            for start in range(0, sizes[i], CHUNK):
                piece = values[start:start + CHUNK]
                scaled = times(piece, s, out=buffer[:piece.size])
                parts[i][start:start + CHUNK] += np.rint(scaled, out=scaled).astype(np.int64)
    return flat


def restore(flat: np.ndarray, shapes: Shapes, scales: Sequence[int]) -> list[np.ndarray]:
    """Fixed point back to float64 arrays; raises DivergedError where a total is beyond float64."""
    parts = np.split(flat, np.cumsum([math.prod(shape) for shape in shapes]))
    arrays = []
    for i, (part, shape, s) in enumerate(zip(parts, shapes, scales, strict=False)):  # parts: one more, empty
        array = times(part, -s, out=np.empty(part.size))
        if not math.isfinite(magnitude(array)):
            raise DivergedError(f"sum: the total of array {i} is beyond float64; the uploads diverge")
        arrays.append(array.reshape(shape))
    return arrays


def times(values: np.ndarray, s: int, out: np.ndarray) -> np.ndarray:
    """values * 2**s in float64, in two factors: 2**s itself may be beyond float64 (s is -1135..1135).

    Only a step that leaves the normal numbers rounds; what it loses here is far below 1/2, or the last bit of
    a subnormal result.
    """
    with np.errstate(over="ignore"):  # restore tests its result
        np.multiply(values, 2.0 ** (s // 2), out=out, dtype=np.float64, casting="unsafe")
        return np.multiply(out, 2.0 ** (s - s // 2), out=out)


def _where(j: int, i: int, array: np.ndarray) -> str:
    bad = np.argwhere(~np.isfinite(array))
    return (f"sum: row {j}, array {i} has {array[tuple(bad[0])]} at {bad[0].tolist()} "
            f"({len(bad)} of {array.size} values are not finite); lower the learning rate or clip gradients")
