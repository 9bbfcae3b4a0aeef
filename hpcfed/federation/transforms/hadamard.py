"""Random rotation of a vector by signs and the Hadamard matrix, which spreads its values evenly.

The rotation is H diag(signs) / sqrt(D). It is orthogonal: norms stay, and the sum of rotated
vectors is the rotated sum. D is the length of the vector, padded with zeros to a power of two. The
additions have one fixed order, so that equal vectors have equal bits everywhere.
"""

from __future__ import annotations

import numpy as np


def padded(n: int) -> int:
    """Return the length D of a rotated vector of n values: the next power of two."""
    return 1 << max(0, n - 1).bit_length()


def draw_signs(g: np.random.Generator, n: int) -> np.ndarray:
    """Return n random signs, each 1.0 or -1.0."""
    return 1.0 - 2.0 * g.integers(0, 2, n)


def transform(values: np.ndarray) -> np.ndarray:
    """Return the Walsh-Hadamard transform over sqrt(D) of vectors of D values, a power of two.

    It is its own inverse. values: [..., D].
    """
    D = values.shape[-1]
    if D & (D - 1) or not D:
        raise ValueError(f"a Hadamard transform needs a power of two values, not {D}")
    result = np.array(values, np.float64)
    half = 1
    while half < D:
        pairs = result.reshape(-1, 2, half)
        total = pairs[:, 0] + pairs[:, 1]
        np.subtract(pairs[:, 0], pairs[:, 1], out=pairs[:, 1])
        pairs[:, 0] = total
        half *= 2
    return result * D**-0.5


def rotate(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return the rotated vector [D].  values: [n], padded with zeros.  signs: [D]."""
    wide = np.zeros(len(signs))
    wide[: len(values)] = values
    return transform(wide * signs)


def rotate_back(values: np.ndarray, signs: np.ndarray, n: int) -> np.ndarray:
    """Return the n values [n] whose rotation is `values` [D]."""
    return (transform(values) * signs)[:n]
