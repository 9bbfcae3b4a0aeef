"""Gaussian noise that depends on positions only.

The value at a flat position of an array is a function of the seed, a key (round, call, array) and
that position. So any section of the array can be made anywhere, and a sum that ranks finish in
sections gets the same noise, whatever their number. Values are drawn in blocks of BLOCK, each from
its own named stream, since draws within a stream depend on the draws before them.
"""

from __future__ import annotations

import numpy as np

from hpcfed.core import rng

BLOCK = 1 << 16


def gaussian(seed: int, *key: str | int, start: int = 0, n: int) -> np.ndarray:
    """Return the standard normal values at the flat positions start..start + n - 1, float64."""
    values = np.empty(n)
    for b in range(start // BLOCK, -(-(start + n) // BLOCK)):
        begin, end = max(start, b * BLOCK), min(start + n, (b + 1) * BLOCK)
        block = rng.stream(seed, *key, b).standard_normal(end - b * BLOCK)
        values[begin - start : end - start] = block[begin - b * BLOCK :]
    return values
