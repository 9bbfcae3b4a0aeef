"""Arithmetic modulo two primes of 31 bits, which together hold an integer of 61 bits and a sign.

Products of matrices are made of products of their halves in float64. Each of those is an integer
below 2**53, hence exact, and as fast as the library of linear algebra.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PRIMES = (2**31 - 1, 2**31 - 19)
MODULUS = PRIMES[0] * PRIMES[1]
HALF = 16  # bits of the lower half of a factor
LONGEST = 1 << 20  # terms of a sum of products of halves that stays below 2**53


def residues(integers: np.ndarray) -> np.ndarray:
    """Return integers, [m] int64, modulo each prime, [2, m] uint64."""
    return np.stack([(integers % p).astype(np.uint64) for p in PRIMES])


def integers(residues: np.ndarray) -> np.ndarray:
    """Return the integers, [m] int64, nearest to 0 that have these residues, [2, m] uint64."""
    p, q = (np.uint64(prime) for prime in PRIMES)
    x, y = residues[0] % p, residues[1] % q
    steps = (y + q - x % q) % q * np.uint64(pow(PRIMES[0], -1, PRIMES[1])) % q
    values = (x + p * steps).astype(np.int64)
    values[values > MODULUS // 2] -= MODULUS
    return values


def product(a: np.ndarray, b: np.ndarray, p: int) -> np.ndarray:
    """Return the product of two matrices modulo p, uint64.

    a: [n, u] and b: [u, c], of any integer type, values in 0..p - 1.
    Raises ValueError for more than LONGEST columns of `a`.
    """
    if a.shape[1] > LONGEST:
        raise ValueError(f"product: {a.shape[1]} terms are more than {LONGEST}")
    (a_low, a_high), (b_low, b_high) = halves(a), halves(b)
    low, middle, high = (
        part.astype(np.uint64) % np.uint64(p)
        for part in (a_low @ b_low, a_high @ b_low + a_low @ b_high, a_high @ b_high)
    )
    shift = np.uint64(1 << HALF)
    return ((high * shift + middle) % np.uint64(p) * shift + low) % np.uint64(p)


def halves(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower HALF bits and the others, as float64."""
    values = values.astype(np.uint64)
    mask = np.uint64((1 << HALF) - 1)
    return (values & mask).astype(float), (values >> np.uint64(HALF)).astype(float)


def powers(points: Sequence[int], n: int, p: int) -> np.ndarray:
    """Return the Vandermonde matrix of these points modulo p, [points, n] uint64."""
    return np.array([[pow(x, i, p) for i in range(n)] for x in points], np.uint64)


def inverse_powers(points: Sequence[int], p: int) -> np.ndarray:
    """Return the inverse of the square Vandermonde matrix of these points modulo p, uint64.

    Its row i gives coefficient i of the polynomial from the polynomial's values at the points.
    """
    master = [1]  # the product of (x - point) over all points, constant term first
    for point in points:
        raised = [0, *master]
        master = [(a - point * b) % p for a, b in zip(raised, [*master, 0], strict=True)]
    columns = []
    for point in points:
        quotient = [0] * len(points)  # master / (x - point), by Horner's method
        carry = 0
        for i in reversed(range(len(points))):
            carry = (master[i + 1] + point * carry) % p
            quotient[i] = carry
        value = sum(c * pow(point, i, p) for i, c in enumerate(quotient)) % p
        factor = pow(value, -1, p)
        columns.append([c * factor % p for c in quotient])
    return np.array(columns, np.uint64).T
