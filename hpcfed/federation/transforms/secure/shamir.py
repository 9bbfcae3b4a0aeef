"""Shamir's secret sharing over the prime field of p = 2**521 - 1.

A secret of 32 bytes is the constant term of a random polynomial of degree t - 1. Its value at x is
the share of client x. Any t shares determine the polynomial; fewer say nothing about the secret. A
digest travels with the secret, so that a wrong share is noticed when the secret is put together.
Shamir, Communications of the ACM 1979.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

P = 2**521 - 1
SHARE = 66  # bytes of a share
SECRET = 32  # bytes of a secret, and of its digest


def split(
    secret: bytes, points: Sequence[int], t: int, draw: Callable[[int], bytes]
) -> list[bytes]:
    """Return the share of each point, of which any t give the secret.

    secret: SECRET bytes.
    points: numbers >= 1, all different.
    draw: returns random bytes.
    """
    checked = int.from_bytes(secret + hashlib.sha256(secret).digest(), "big")
    polynomial = [checked, *(int.from_bytes(draw(SHARE), "big") % P for _ in range(t - 1))]
    return [evaluate(polynomial, x, P).to_bytes(SHARE, "big") for x in points]


def join(shares: Mapping[int, bytes], t: int) -> bytes:
    """Return the secret of the first t shares by point.

    Raises ValueError if there are fewer, or if one of them is wrong.
    """
    if len(shares) < t:
        raise ValueError(f"secure aggregation: {len(shares)} shares are not the {t} that it takes")
    points = tuple(sorted(shares)[:t])
    values = [int.from_bytes(shares[x], "big") for x in points]
    checked = constant_term(points, values, P)
    secret, digest = divmod(checked, 1 << 8 * SECRET)
    plain = secret.to_bytes(SHARE - SECRET, "big")[-SECRET:]
    if hashlib.sha256(plain).digest() != digest.to_bytes(SECRET, "big"):
        raise ValueError("secure aggregation: a share is wrong, for the secret has another digest")
    return plain


def evaluate(polynomial: Sequence[int], x: int, p: int) -> int:
    """Return the value at x of a polynomial modulo p; its constant term comes first."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % p
    return value


def constant_term(points: tuple[int, ...], values: Sequence[int], p: int) -> int:
    """Return the value at 0 of the polynomial modulo p that has these values at these points."""
    factors = lagrange(points, p)
    return sum(factor * value for factor, value in zip(factors, values, strict=True)) % p


@lru_cache(maxsize=1024)
def lagrange(points: tuple[int, ...], p: int) -> list[int]:
    """Return the factors of the values at these points in the polynomial's value at 0."""
    factors = []
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * other % p, below * (other - x) % p
        factors.append(above * pow(below, -1, p) % p)
    return factors
