"""Arithmetic modulo M = 2**55 - 4705, a product of three primes of 19 bits.

A residue modulo M is one word, and holds the integer of a sum (at most 2**53 in magnitude). A
matrix is multiplied modulo each prime: in float64, where sums of products of 19 bits are below
2**53, hence exact, and as fast as the library of linear algebra. Columns pass in blocks that stay
in the cache.

M is that close to a power of two so that the lower 55 bits of a random word are below M but once in
10**13 times, when another word is drawn: residues are uniform, at the price of the word itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hpcfed.federation.transforms.secure.keys import CHUNK, full_chunks

PRIMES = (310433, 313471, 370241)
BITS = 55
MODULUS = PRIMES[0] * PRIMES[1] * PRIMES[2]
REST = (1 << BITS) - MODULUS
HALF = 28  # bits of the lower half of a residue
LONGEST = 1 << 16  # terms of a sum of products that stays below 2**53
BLOCK = 1 << 15  # values of a matrix product's factors and results that are in the cache at once
LIMIT = 1 << 53  # of the magnitude of an integer
M = np.uint64(MODULUS)


def reduce(values: np.ndarray, times: int = 1) -> np.ndarray:
    """Subtract M from values of [0, (times + 1) M) until they are below it, in place.

    values: uint64.  times: a power of two minus 1.
    """
    while times:
        times //= 2  # what is negative wraps around, and is larger than what it was
        np.minimum(values, values - np.uint64((times + 1) * MODULUS), out=values)
    return values


def add(total: np.ndarray, values: np.ndarray) -> None:
    """Add residues to others, in place."""
    total += values
    reduce(total)


def subtract(total: np.ndarray, values: np.ndarray) -> None:
    """Subtract residues from others, in place."""
    total += M - values
    reduce(total)


def mask(values: np.ndarray, key: bytes) -> np.ndarray:
    """Add the residues of a key to integers, [m] int64 of at most LIMIT in magnitude, in place.

    Returns residues of the integers plus LIMIT, which keeps them from being negative, [m] uint64.
    """
    residues, scratch = values.view(np.uint64), np.empty(CHUNK, np.uint64)
    for start, words in draw_chunks(key, len(values)):
        part, reduced = residues[start : start + len(words)], scratch[: len(words)]
        part += words
        np.add(part, np.uint64((1 << 64) + LIMIT - MODULUS), out=reduced)
        part += np.uint64(LIMIT)
        np.minimum(part, reduced, out=part)  # what is negative has wrapped around, and is large
    return residues


def draw_chunks(key: bytes, n: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the n random residues of a key, in chunks with their positions, uint64.

    A chunk is valid until the next one.
    """
    lower = np.uint64((1 << BITS) - 1)
    chunks = full_chunks(key)
    for start in range(0, n, CHUNK):
        words = next(chunks)
        words &= lower
        while words.max() >= M:
            beyond = words >= M
            spare = words[beyond]
            words[beyond] = next(chunks)[: len(spare)] & lower
        yield start, words[: n - start]


def draw(key: bytes, n: int) -> np.ndarray:
    """Return the n random residues of a key, [n] uint64."""
    residues = np.empty(n, np.uint64)
    for start, words in draw_chunks(key, n):
        residues[start : start + len(words)] = words
    return residues


def integers(residues: np.ndarray, n: int) -> np.ndarray:
    """Return the sum of n integers, [m] int64, from that of their residues by `mask`, [m] uint64.

    It is the one that is nearest to 0.
    """
    signed = reduce(residues + np.uint64(-n * LIMIT % MODULUS)).view(np.int64)
    signed[signed > MODULUS // 2] -= MODULUS
    return signed


def halves(residues: np.ndarray) -> np.ndarray:
    """Return the lower and the higher bits of residues, of which many can be added up, [2, m]."""
    return np.stack(split(residues))


def join(sums: np.ndarray) -> np.ndarray:
    """Return residues, [m] uint64, from the sums of their halves, [2, m], of at most 2**30."""
    low, high = sums
    top = np.uint64(BITS - HALF)  # 2**55 is REST modulo M
    rest = high & np.uint64((1 << (BITS - HALF)) - 1)
    return ((high >> top) * np.uint64(REST) + (rest << np.uint64(HALF)) + low) % M


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product of two matrices modulo M, [n, c] uint64.

    a: [3, n, u], residues modulo each prime.  b: [u, c] uint64, residues modulo M.
    Raises ValueError for more than LONGEST columns of `a`.
    """
    _, n, u = a.shape
    if u > LONGEST:
        raise ValueError(f"product: {u} terms are more than {LONGEST}")
    # the residues s_i of a result modulo the primes make it up: the sum of s_i / c_i M / p_i, with
    # c_i = M / p_i modulo p_i; each factor of `a` is divided by c_i beforehand
    cofactors = [MODULUS // p for p in PRIMES]
    scaled = np.stack(
        [row * pow(c, -1, p) % p for row, c, p in zip(a, cofactors, PRIMES, strict=True)]
    ).astype(float)
    result = np.empty((n, b.shape[1]), np.uint64)
    width = max(16, BLOCK // (n + u))
    for start in range(0, b.shape[1], width):
        block = result[:, start : start + width]
        low, high = (half.astype(float) for half in split(b[:, start : start + width]))
        total = np.zeros(block.shape, np.uint64)
        for matrix, c, p in zip(scaled, cofactors, PRIMES, strict=True):
            residues = remainders(high * float((1 << HALF) % p) + low, p)
            term = remainders(matrix @ residues, p).astype(np.uint64)
            term *= np.uint64(c)  # below 2 M, for a remainder may be p too large
            total += term
        block[:] = reduce(total, times=7)
    return result


def split(residues: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and the higher bits of residues, uint64."""
    return residues & np.uint64((1 << HALF) - 1), residues >> np.uint64(HALF)


def remainders(values: np.ndarray, p: int) -> np.ndarray:
    """Return whole numbers below 2**53, float64, modulo p, in place; they may be p too large.

    They are at most p for numbers below 2**46.
    """
    quotients = values * (1 / p * (1 - 2**-50))  # never too large
    np.floor(quotients, out=quotients)
    quotients *= p
    values -= quotients
    return values


def powers(points: Sequence[int], n: int) -> np.ndarray:
    """Return the Vandermonde matrix of these points modulo each prime, [3, points, n] int64."""
    return np.stack([powers_modulo(points, n, p) for p in PRIMES])


def powers_modulo(points: Sequence[int], n: int, p: int) -> np.ndarray:
    """Return the Vandermonde matrix of these points modulo p, [points, n] int64."""
    return np.array([[pow(x, i, p) for i in range(n)] for x in points], np.int64)


def inverse_powers(points: Sequence[int]) -> np.ndarray:
    """Return the inverse of the square Vandermonde matrix of these points modulo each prime.

    Row i of a matrix gives coefficient i of the polynomial from its values at the points.
    """
    return np.stack([inverse_powers_modulo(points, p) for p in PRIMES])


def inverse_powers_modulo(points: Sequence[int], p: int) -> np.ndarray:
    """Return the inverse of the square Vandermonde matrix of these points modulo p, int64."""
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
    return np.array(columns, np.int64).T
