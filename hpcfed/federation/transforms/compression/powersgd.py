"""PowerSGD: a matrix as the product of two thin factors, by one step of subspace iteration.

Vogels, Karimireddy and Jaggi, NeurIPS 2019, arXiv:1905.13727. A tensor is a matrix M of its first
dimension by the others, [m, l]. With the right factor Q [l, r] of the client's last message,
P = M Q, its columns orthonormalised, and the new Q = M^T P; both travel, and P Q^T is decoded.
Vectors, and matrices whose factors would not be shorter, travel as they are.

Deviation: in the paper all workers have Q in common, and average P before they compute Q. That
needs two exchanges in a round. Here each client has a Q of its own in its memory, and sends both
factors in one message; the mean of the decoded matrices has a rank of up to r times the clients.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from hpcfed.federation.transforms.compression.bits import Reader
from hpcfed.federation.transforms.compression.codec import Codec, Settings, Shape


class PowerSGD(Codec):
    """rank: r, the columns of a factor."""

    contracts = True
    has_memory = True

    def __init__(self, rank: int, min_size: int = 0) -> None:
        super().__init__(min_size)
        self.rank = rank

    @classmethod
    def of_job(cls, settings: Settings, unbiased: bool) -> Self:
        return cls(settings.rank, min_size=settings.min_size)

    def pack(
        self, x: np.ndarray, generator: np.random.Generator, memory: dict[str, Any]
    ) -> bytes | None:
        rows, columns = matrix(x.shape)
        if self.most_bytes_of(x.shape) >= x.nbytes:
            return None
        M = double(x).reshape(rows, columns)
        start = memory.get("Q")
        if start is None or start.shape != (columns, self.rank):
            start = generator.standard_normal((columns, self.rank))
        P = orthonormal(M @ double(start))
        Q = M.T @ P
        factors = [factor.float().numpy() for factor in (P, Q)]
        if factors[1].any():  # else the next message would have a start of zeros
            memory["Q"] = factors[1]
        return b"".join(factor.tobytes() for factor in factors)

    def unpack(self, reader: Reader, shape: Shape, generator: Any) -> np.ndarray:
        P, Q = (
            double(reader.array("f4", n * self.rank)).reshape(n, self.rank) for n in matrix(shape)
        )
        return (P @ Q.T).float().numpy()

    def most_bytes_of(self, shape: Shape) -> int:
        return 4 * self.rank * sum(matrix(shape))


def matrix(shape: Shape) -> tuple[int, int]:
    """Return the rows and columns of a tensor as a matrix."""
    rows = shape[0] if shape else 1
    return rows, math.prod(shape[1:])


def double(x: np.ndarray) -> Tensor:
    """Return a copy for products, whose bits depend on the threads of the job alone."""
    return torch.from_numpy(np.array(x, np.float64)).clone()


def orthonormal(P: Tensor) -> Tensor:
    """Return orthonormal columns of the same span, by Gram-Schmidt in the order of the columns.

    A column that depends on those before it becomes 0.
    """
    columns: list[Tensor] = []
    for column in P.unbind(1):
        length = column.norm()
        for other in columns:
            column = column - (other @ column) * other
        rest = column.norm()
        columns.append(column / rest if rest > 1e-12 * length else torch.zeros_like(column))
    return torch.stack(columns, 1)
