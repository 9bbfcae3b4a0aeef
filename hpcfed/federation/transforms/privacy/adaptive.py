"""Adaptive clipping: the bound follows a quantile of the clients' norms.

Andrew et al., NeurIPS 2021, arXiv:1905.03871. Each client sends the bit [norm <= C] - 1/2 beside
its vector. The server adds noise to the sum of bits, too, and multiplies C by
exp(-rate (share - quantile)) after the noise of the round has been drawn for the old C.
"""

from __future__ import annotations

import math

from hpcfed.core.errors import ConfigError


def split_noise(z: float, sigma_bit: float) -> float:
    """Return the noise multiplier of the vector, so that vector and bit together have z.

    sigma_bit: standard deviation of the noise on the sum of bits, which one client changes by 1/2.
    Raises ConfigError if the noise on the bits alone gives less privacy than z.
    """
    if not z:
        return 0.0
    if sigma_bit <= z / 2:
        raise ConfigError(
            f"privacy.bit_noise = {sigma_bit:g} is not above half of the noise multiplier, {z:g}, "
            f"so that the bits alone cost more than the job allows; set more, or leave it out"
        )
    return (z**-2 - (2 * sigma_bit) ** -2) ** -0.5


def bit(length: float, bound: float) -> float:
    """Return what a client sends for the bound: 1/2 if its vector is within it, else -1/2."""
    return 0.5 if length <= bound else -0.5


def adapted(bound: float, bits: float, m: float, rate: float, quantile: float) -> float:
    """Return the bound of the next round.

    bits: the noisy sum of the clients' bits.
    m: the expected number of clients.
    """
    share = min(1.0, max(0.0, bits / m + 0.5))
    return bound * math.exp(-rate * (share - quantile))
