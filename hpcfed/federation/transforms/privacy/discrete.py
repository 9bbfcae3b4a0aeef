"""Distributed noise: integers of clients whose noise is a share of the noise of their sum.

A client rotates its clipped vector (`hadamard`), multiplies it by the scale s, rounds it at random
to integers and adds integer noise. The server learns the sum of the integers modulo 2^bits, and
nothing else if it is computed securely. So no server has to be trusted with the noise.

Discrete Gaussian: Kairouz, Liu and Steinke, ICML 2021, arXiv:2102.06387. Skellam: Agarwal, Kairouz
and Liu, NeurIPS 2021, arXiv:2110.04995. Samplers: Canonne, Kamath and Steinke, NeurIPS 2020,
arXiv:2004.00010. Sampling of clients: Zhu and Wang, ICML 2019, theorem 5.
Deviations: the scale is rounded down to a power of two, so that restoring values is exact; the
variance of the discrete Gaussian in grid units is rounded up to an integer, so that its sampler
computes with integers only. Poisson variables of the Skellam noise are NumPy's, in floating point.

Symbols: c is the bound of a client's vector, D its padded length, n the clients of a sum, sigma the
standard deviation of one client's noise; c and sigma are in units of values, s of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Literal

import numpy as np

Mechanism = Literal["discrete-gaussian", "skellam"]

BETA = math.exp(-0.5)  # probability with which a rounded vector may be drawn again
LARGEST = 1 << 13  # standard deviation of the discrete Gaussian, so that all products fit int64
TAIL = 41  # multiples of t at which a Laplace variable is never accepted: with e^-800
# of Renyi divergences; those between integers serve sums of all clients only
ORDERS = (*(1 + k / 10 for k in range(1, 100) if k % 10), *range(2, 129), 256)


# Exact samplers


def bernoulli_exp(num: np.ndarray, den: np.ndarray, g: np.random.Generator) -> np.ndarray:
    """Return draws that are true with probability exp(-num / den).

    num, den: [n], int64, num >= 0, den > 0.
    """
    result = np.ones(len(num), bool)
    units = num // den  # one factor exp(-1) each
    active = np.flatnonzero(units)
    while len(active):  # a failure ends the factors of its draw
        won = _bernoulli_exp_small(np.ones_like(active), np.ones_like(active), g)
        result[active[~won]] = False
        units[active] -= 1
        active = active[won & (units[active] > 0)]
    rest = np.flatnonzero(result)
    result[rest] = _bernoulli_exp_small(num[rest] % den[rest], den[rest], g)
    return result


def _bernoulli_exp_small(num: np.ndarray, den: np.ndarray, g: np.random.Generator) -> np.ndarray:
    """Return draws that are true with probability exp(-num / den), for num <= den.

    Draws with probability num / (den k) for k = 1, 2, ... until the first failure: the number of
    the failed one is odd with probability exp(-num / den).
    """
    odd = np.ones(len(num), bool)
    active, k = np.arange(len(num)), 1
    while len(active):
        won = g.integers(0, den[active]) < num[active]
        if k > 1:
            won &= g.integers(0, k, len(active)) == 0
        active = active[won]
        odd[active] ^= True
        k += 1
    return odd


def discrete_laplace(t: int, n: int, g: np.random.Generator) -> np.ndarray:
    """Return n integers with probabilities proportional to exp(-|x| / t).  t: >= 1."""
    result, missing = np.empty(n, np.int64), np.arange(n)
    while len(missing):
        m = len(missing)
        low = g.integers(0, t, m)
        valid = bernoulli_exp(low, np.full(m, t), g)
        high, active = np.zeros(m, np.int64), np.flatnonzero(valid)
        while len(active):
            active = active[bernoulli_exp(np.ones_like(active), np.ones_like(active), g)]
            high[active] += 1
        value, negative = low + t * high, g.integers(0, 2, m) == 1
        valid &= ~(negative & (value == 0))  # zero would come twice
        result[missing[valid]] = np.where(negative, -value, value)[valid]
        missing = missing[~valid]
    return result


def discrete_gaussian(variance: int, n: int, g: np.random.Generator) -> np.ndarray:
    """Return n integers with probabilities proportional to exp(-x^2 / (2 variance)).

    variance: an integer from 0 to LARGEST^2.  Raises ValueError for other ones.
    """
    check_variance(variance)
    result, missing = np.zeros(n, np.int64), np.arange(n if variance else 0)
    t = math.isqrt(variance) + 1
    while len(missing):
        m = len(missing)
        value = discrete_laplace(t, m, g)
        size = np.abs(value)
        valid = size < TAIL * t
        # exp(-(|x| - variance / t)^2 / (2 variance))
        num = (np.minimum(size, TAIL * t) * t - variance) ** 2
        valid &= bernoulli_exp(num, np.full(m, 2 * variance * t * t), g)
        result[missing[valid]] = value[valid]
        missing = missing[~valid]
    return result


def check_variance(variance: float) -> None:
    """Raise ValueError for a variance that the sampler of the discrete Gaussian does not know."""
    if not 0 <= variance <= LARGEST**2:
        raise ValueError(
            f"the variance of a discrete Gaussian is 0..{LARGEST**2} in grid units, not {variance}"
        )


def skellam(variance: float, n: int, g: np.random.Generator) -> np.ndarray:
    """Return n differences of two Poisson variables of rate variance / 2."""
    return g.poisson(variance / 2, n) - g.poisson(variance / 2, n)


def draw_noise(
    mechanism: Mechanism, sigma: float, s: int, n: int, g: np.random.Generator
) -> np.ndarray:
    """Return n integers of one client's noise.  sigma: in units of values.  s: the scale."""
    variance = grid_variance(mechanism, sigma, s)
    if mechanism == "skellam":
        return skellam(variance, n, g)
    return discrete_gaussian(int(variance), n, g)


def grid_variance(mechanism: Mechanism, sigma: float, s: float) -> float:
    """Return the variance of one client's noise in grid units."""
    variance = (sigma * s) ** 2
    return variance if mechanism == "skellam" else math.ceil(variance * (1 - 1e-12))


# Grid


def rounded_norm(norm: float, D: int, beta: float = BETA) -> float:
    """Return the bound of the norm of a vector after its D values are rounded at random.

    norm: bound before, in grid units.  beta: 0: without drawing again.
    """
    largest = norm + math.sqrt(D)
    if not beta:
        return largest
    root = math.sqrt(2 * math.log(1 / beta))
    return min(largest, math.sqrt(norm**2 + D / 4 + root * (norm + math.sqrt(D) / 2)))


def round_at_random(values: np.ndarray, bound: float, g: np.random.Generator) -> np.ndarray:
    """Return int64 values, each rounded up or down so that its mean is itself.

    bound: largest norm; the vector is drawn again until it is within it (`rounded_norm`).
    """
    low = np.floor(values)
    share = values - low
    while True:
        rounded = low + (g.random(len(values)) < share)
        if float(rounded @ rounded) <= bound**2 * (1 + 1e-12):
            return rounded.astype(np.int64)


def find_scale(bits: int, n: int, D: int, c: float, sigma: float, k: float = 4.0) -> int:
    """Return the scale of the grid, a power of two, so that sums stay within 2^bits.

    k: standard deviations of a value of the sum that are within the ring.
    Raises ValueError if there is no scale of at least 1.
    """
    exact = scale_bound(bits, n, D, c, sigma, k)
    if exact < 1:
        raise ValueError(
            f"{bits} bits are too few for the sum of {n} clients with bound {c:g} and noise "
            f"{sigma:g} each"
        )
    return 1 << math.floor(math.log2(exact))


def scale_bound(bits: int, n: int, D: int, c: float, sigma: float, k: float = 4.0) -> float:
    """Return the largest scale; 0 if the ring is too small for rounding alone."""
    remainder = 4.0**bits - n * k**2
    return math.sqrt(max(remainder, 0)) / (2 * k * math.sqrt(c**2 * n**2 / D + n * sigma**2))


def wrap(total: np.ndarray, bits: int) -> np.ndarray:
    """Return integers modulo 2^bits, in -2^(bits - 1)..2^(bits - 1) - 1.

    The sum of wrapped values, wrapped, is the wrapped sum, so clients need not wrap theirs.
    """
    half = 1 << (bits - 1)
    return (total + half) % (1 << bits) - half


# Renyi divergences


def excess(n: int, sigma_s: float) -> float:
    """Return tau: how far the sum of n discrete Gaussians is from a discrete Gaussian.

    sigma_s: standard deviation of one in grid units.
    """
    k = np.arange(1, n)
    return 10 * float(np.exp(-2 * (math.pi * sigma_s) ** 2 * k / (k + 1)).sum())


def divergences(
    mechanism: Mechanism, n: int, c: float, sigma: float, s: float, D: int
) -> Callable[[float], float]:
    """Return the Renyi divergence of one sum as a function of the order.

    n: clients whose noise is in the sum.  sigma: of one client.  s: the scale of the grid.
    D: number of values.
    """
    sigma = math.sqrt(grid_variance(mechanism, sigma, s)) / s
    if not (n and sigma):
        return lambda order: math.inf
    grid = rounded_norm(c * s, D)
    l2 = grid / s
    l1 = l2 * min(math.sqrt(D), grid)
    if mechanism == "skellam":
        return lambda order: skellam_divergence(order, n * sigma**2, l1, l2, s)
    tau = excess(n, sigma * s)
    return lambda order: gaussian_divergence(order, math.sqrt(n) * sigma, l1, l2, tau, D)


def gaussian_divergence(
    order: float, total: float, l1: float, l2: float, tau: float, D: int
) -> float:
    """Return the divergence of a sum with discrete Gaussian noise of deviation `total`.

    l1, l2: sensitivities.  Kairouz et al., proposition 14.
    """
    a, b = l2 / total, l1 / total
    return min(
        order / 2 * a**2 + tau * D,
        order / 2 * (a**2 + 2 * tau * b + tau**2 * D),
        order / 2 * (a + math.sqrt(D) * tau) ** 2,
    )


def skellam_divergence(order: float, mu: float, l1: float, l2: float, s: float) -> float:
    """Return the divergence of a sum with Skellam noise of variance mu.

    l1, l2: sensitivities.  Agarwal et al., theorem 3.5.
    """
    second = ((2 * order - 1) * s * l2**2 + 6 * l1) / (4 * s**3 * mu**2)
    return order * l2**2 / (2 * mu) + min(second, 3 * l1 / (2 * s * mu))


def sampled(divergence: Callable[[float], float], q: float, order: float) -> float:
    """Return the divergence at an order if each client takes part with probability q.

    Sampling lowers it at integer orders; between them it is that of all clients.
    """
    if not q:
        return 0.0
    if q == 1 or not isinstance(order, int):
        return divergence(order)
    from scipy.special import gammaln, logsumexp  # here: runs without noise do not load scipy

    log_q, log_rest = math.log(q), math.log1p(-q)
    j = np.arange(3, order + 1)
    combinations = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    parts = combinations + (order - j) * log_rest + j * log_q + math.log(3)
    parts += [(i - 1) * divergence(i) for i in range(3, order + 1)]
    start = (order - 1) * log_rest + math.log1p((order - 1) * q)
    pair = math.log(math.comb(order, 2)) + 2 * log_q + (order - 2) * log_rest + divergence(2)
    bound = float(logsumexp([start, pair, *parts])) / (order - 1)
    return min(bound, divergence(order))


@lru_cache(maxsize=256)
def divergences_of(
    mechanism: Mechanism, n: int, c: float, sigma: float, s: float, D: int, q: float
) -> Sequence[float]:
    """Return the divergences of one sampled sum at ORDERS."""
    divergence = cache(divergences(mechanism, n, c, sigma, s, D))
    return tuple(sampled(divergence, q, order) for order in ORDERS)
