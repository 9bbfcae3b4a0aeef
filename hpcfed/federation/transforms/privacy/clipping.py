"""Clipping: bounds of the L2 norm of what one client sends.

An upload is one vector, whatever its parts, since all of it depends on the same client: the norm is
over all values of all its tensors, in float64. Norms are sums in a fixed order, so that equal
uploads have equal bits on any rank. A vector within its bound keeps its bits.

Flat: the vector is scaled to norm <= C (McMahan et al., ICLR 2018, arXiv:1710.06963). Layers: each
of L tensors is scaled to norm <= C / sqrt(L) alone, so that the vector has norm <= C. Adaptive: C
follows a quantile of the clients' norms (Andrew et al., NeurIPS 2021, arXiv:1905.03871): each
client sends the bit [norm <= C] - 1/2 beside its vector, both with noise, and C is multiplied by
exp(-rate (share - quantile)) after the noise of the round has been drawn for the old C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


def square(value: Tensor) -> float:
    """Return the sum of squares of a tensor's values, in float64."""
    return float(value.detach().double().square_().sum()) if value.numel() else 0.0


def norm(values: Tensors) -> float:
    """Return the L2 norm of all values together."""
    return math.sqrt(math.fsum(square(value) for value in values.values()))


def factor(length: float, bound: float) -> float:
    """Return the factor that scales a vector of this norm to the bound; 1 if it is within it."""
    return 1.0 if length <= bound else bound / length


def clip_flat(values: Tensors, bound: float) -> dict[str, Tensor]:
    """Return the tensors, scaled together to a norm of at most the bound."""
    return scale(values, factor(norm(values), bound))


def clip_layers(values: Tensors, bound: float) -> dict[str, Tensor]:
    """Return the tensors, each scaled to a norm of at most bound / sqrt(number of tensors)."""
    share = bound / math.sqrt(max(1, len(values)))
    clipped: dict[str, Tensor] = {}
    for name, value in values.items():
        clipped |= clip_flat({name: value}, share)
    return clipped


def scale(values: Tensors, by: float) -> dict[str, Tensor]:
    """Return the tensors times a factor; with factor 1 the same tensors.

    A factor below 1 is lowered by what rounding may add to the norm, in the type of the values.
    """
    if by == 1.0:
        return dict(values)
    return {
        name: (value.double() * (by * (1 - torch.finfo(value.dtype).eps))).to(value.dtype)
        for name, value in values.items()
    }


def split_noise(z: float, sigma_bit: float) -> float:
    """Return the noise multiplier of the vector, so that vector and bit together have z.

    sigma_bit: standard deviation of the noise on the sum of bits, which one client changes by 1/2.
    Raises ValueError if the noise on the bits alone gives less privacy than z.
    """
    if not z:
        return 0.0
    if sigma_bit <= z / 2:
        raise ValueError(
            f"noise of {sigma_bit:g} on the sum of bits is not above half of the multiplier {z:g}"
        )
    return (z**-2 - (2 * sigma_bit) ** -2) ** -0.5


def adapted(bound: float, bits: float, m: float, rate: float, quantile: float) -> float:
    """Return the bound of the next round.

    bits: the noisy sum of the clients' bits, each 1/2 or -1/2.
    m: the expected number of clients.
    """
    share = min(1.0, max(0.0, bits / m + 0.5))
    return bound * math.exp(-rate * (share - quantile))


def bit(length: float, bound: float) -> Tensor:
    """Return what a client sends for the bound: 1/2 if its vector is within it, else -1/2."""
    return torch.tensor(0.5 if length <= bound else -0.5, dtype=torch.float64)
