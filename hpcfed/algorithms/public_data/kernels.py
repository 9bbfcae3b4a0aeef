"""Kernels of clients' representations of examples that all clients have, and their mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from hpcfed.core.params import Mean, Params
from hpcfed.training import similarity

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation

STRIP = 256  # largest number of rows of the kernels that are averaged at a time
MEMORY = 1 << 28  # bytes that these rows may take for all clients together
BYTES = 4  # of a float32


class Settings(Protocol):
    """The options of a method's kernels; FedHeNN's fields describe them."""

    @property
    def kernel(self) -> str: ...
    @property
    def bandwidth(self) -> float: ...
    @property
    def kernel_norm(self) -> str: ...


@dataclass(frozen=True)
class Kernel:
    """The kernel of a representation z [L, d], factor * k(z_p, z_q).

    Only strips of it are in memory.
    precision: 1 / (2 sigma^2) of an RBF kernel; None: linear.
    """

    z: Tensor
    precision: Tensor | None = None
    factor: Tensor | float = 1.0

    @classmethod
    def of(cls, z: Tensor, method: Settings) -> Kernel:
        """Return the method's kernel of a representation z [L, d].

        With kernel_norm = "frobenius" its centred form has length 1. A kernel that is constant up
        to rounding becomes 0: scaled, its rounding errors would count as much as the other kernels.
        """
        rbf = method.kernel == "rbf"
        made = cls(
            z,
            similarity.precision(similarity.squared_distances(z, z), method.bandwidth)
            if rbf
            else None,
        )
        if method.kernel_norm == "none":
            return made
        whole = made.rows(0, len(z))
        length = similarity.length(similarity.centre_kernel(whole), whole).to(z.dtype)
        return cls(z, made.precision, torch.where(length == 0, 0.0, 1 / length))

    def rows(self, start: int, stop: int) -> Tensor:
        """Return rows start..stop-1 from the diagonal on, [stop - start, L - start]."""
        few, rest = self.z[start:stop], self.z[start:]
        if self.precision is None:
            return self.factor * (few @ rest.T)
        return self.factor * torch.exp(-self.precision * similarity.squared_distances(few, rest))


def mean_of_kernels(
    fed: Federation, kernels: Mapping[int, Kernel], weights: Mapping[int, float], size: int
) -> Tensor:
    """Return the exact weighted mean of all clients' kernels, [L, L], symmetric.

    Collective; no bytes are counted.

    kernels, weights: of this rank's clients, by id.  size: L.
    """
    whole = torch.zeros(size, size, device=fed.device)
    strip = max(
        1, min(STRIP, MEMORY // (BYTES * size * fed.K))
    )  # depends on all clients, so that all ranks agree
    for start in range(0, size, strip):
        stop = min(start + strip, size)
        parts = (
            (k, Mean.of(Params(kernel=v.rows(start, stop)), weights[k])) for k, v in kernels.items()
        )
        keep = Params(kernel=whole[start:stop, start:])
        whole[start:stop, start:] = fed.mean(parts, keep=keep, counted=False)["kernel"]
    return whole.triu() + whole.triu(1).T
