"""Matrices as products of small factors, by singular value decomposition, for shorter messages.

Packed `Params` have, for a tensor NAME, either NAME itself or "NAME/u" [m, r], "NAME/s" [r] and
"NAME/v" [r, n], where r (m + n + 1) < m n. Kernels of convolutions are matrices [outputs, inputs *
height * width]; tensors of one dimension stay as they are.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from hpcfed import Params

PARTS = ("u", "s", "v")


def pack(values: Mapping[str, Tensor], energy: float) -> Params:
    """Return the values with each matrix as factors, where these are shorter.

    The factors have the smallest rank >= 1 that reaches this energy.
    energy: share of the sum of squared singular values, in (0, 1]; at 1 the product is the matrix
    but for rounding.
    """
    packed = Params()
    for name, value in values.items():
        factors = factorise(value, energy) if value.dim() > 1 and value.numel() else None
        packed |= (
            {name: value}
            if factors is None
            else {f"{name}/{part}": f for part, f in zip(PARTS, factors, strict=True)}
        )
    return packed


def factorise(value: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return u [m, r], s [r], v [r, n] with u diag(s) v close to the value as a matrix [m, n].

    Returns None if the factors are not shorter.
    """
    matrix = value.flatten(1)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    rank = needed_rank(s, energy)
    if rank * (sum(matrix.shape) + 1) >= matrix.numel():
        return None
    return u[:, :rank].contiguous(), s[:rank].clone(), v[:rank].contiguous()


def needed_rank(s: Tensor, energy: float) -> int:
    """Return the smallest rank, at least 1, whose singular values reach this energy."""
    sums = s.double().square().cumsum(0)
    return min(int((sums < energy * sums[-1]).sum()) + 1, len(s))


def unpack(packed: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Params:
    """Return the values that were packed, with the names and shapes of `like`."""
    return Params(
        {
            name: packed[name] if name in packed else product(packed, name).reshape(value.shape)
            for name, value in like.items()
        }
    )


def product(packed: Mapping[str, Tensor], name: str) -> Tensor:
    """Return u diag(s) v of one packed matrix."""
    u, s, v = (packed[f"{name}/{part}"] for part in PARTS)
    return (u * s) @ v
