"""Kernels of clients' representations of examples that all clients have, and their mean."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from hpcfed import Client, Federation, Mean, Params, Shard, Upload
from hpcfed.training import similarity
from hpcfed.training.infer import represent

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
    @property
    def upload(self) -> str: ...


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
    def of(cls, z: Tensor, method: Settings) -> Self:
        """Return the method's kernel of a representation z [L, d].

        With kernel_norm = "frobenius" its centred form has length 1. A kernel that is constant up
        to rounding becomes 0: scaled, its rounding errors would count as much as the other kernels.
        """
        rbf = method.kernel == "rbf"
        plain = cls(
            z,
            similarity.precision(similarity.squared_distances(z, z), method.bandwidth)
            if rbf
            else None,
        )
        if method.kernel_norm == "none":
            return plain
        matrix = plain.rows(0, len(z))
        length = similarity.length(similarity.centre_kernel(matrix), matrix).to(z.dtype)
        return cls(z, plain.precision, torch.where(length == 0, 0.0, 1 / length))

    def rows(self, start: int, stop: int) -> Tensor:
        """Return rows start..stop-1 from the diagonal on, [stop - start, L - start]."""
        rows, columns = self.z[start:stop], self.z[start:]
        if self.precision is None:
            return self.factor * (rows @ columns.T)
        distances = similarity.squared_distances(rows, columns)
        return self.factor * torch.exp(-self.precision * distances)

    def half(self) -> Tensor:
        """Return the entries from the diagonal on, row after row, [L (L + 1) / 2]."""
        L = len(self.z)
        return torch.cat(
            [
                strip[torch.ones_like(strip, dtype=torch.bool).triu()]
                for start, stop in strips(L, STRIP)
                for strip in [self.rows(start, stop)]
            ]
        )


def send_kernel(fed: Federation, client: Client, rad: Shard, method: Settings) -> Upload:
    """Return what a client sends of the examples: representations [L, d], or half of the kernel."""
    z = represent(fed, client, rad)
    if method.upload == "representations":
        return Upload(z, lasting=False)
    return Upload(Mean.of(Params(kernel=Kernel.of(z, method).half())), lasting=False)


def mean_of_uploads(
    fed: Federation, uploads: Iterable[tuple[int, Any]], size: int, method: Settings
) -> Tensor:
    """Return the exact mean of the kernels that clients have sent, [L, L], symmetric; collective.

    uploads: of this rank's clients, by id, as `send_kernel` made them.  size: L.
    """
    if method.upload == "representations":
        kernels = {k: Kernel.of(z, method) for k, z in uploads}
        return mean_of_kernels(fed, kernels, size)
    keep = Params(kernel=torch.zeros(size * (size + 1) // 2, device=fed.device))
    half = fed.mean(uploads, keep=keep)["kernel"]
    upper = half.new_zeros(size, size)
    upper[torch.ones_like(upper, dtype=torch.bool).triu()] = half
    return upper + upper.triu(1).T


def strips(size: int, height: int) -> Iterator[tuple[int, int]]:
    """Iterate over the first row of each strip of a matrix, and the row after its last."""
    for start in range(0, size, height):
        yield start, min(start + height, size)


def mean_of_kernels(fed: Federation, kernels: Mapping[int, Kernel], size: int) -> Tensor:
    """Return the exact mean of all clients' kernels, [L, L], symmetric; collective.

    kernels: of this rank's clients, by id.  size: L.
    """
    mean = torch.zeros(size, size, device=fed.device)
    # depends on all clients, so that all ranks agree
    height = max(1, min(STRIP, MEMORY // (BYTES * size * fed.K)))
    for start, stop in strips(size, height):
        parts = ((k, Mean.of(Params(kernel=v.rows(start, stop)))) for k, v in kernels.items())
        keep = Params(kernel=mean[start:stop, start:])
        mean[start:stop, start:] = fed.mean(parts, keep=keep)["kernel"]
    return mean.triu() + mean.triu(1).T
