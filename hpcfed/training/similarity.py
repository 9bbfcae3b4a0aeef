"""Similarity of two representations of the same examples: CKA and Procrustes distance.

A representation is [L, d], a kernel [L, L]; gradients flow through both arguments. All measures
ignore shifts, rotations and the scale of a representation. If one representation is constant over
examples, up to rounding, CKA is 0; if both are, it is 1; the gradient is 0 in both cases. Values
are as precise as the input's type. Sums of squares are formed of matrices of length 1, so that
large activations do not overflow.
Makhija et al. (FedHeNN), ICML 2022, arXiv:2202.07757, section 3.4; Kornblith et al., ICML 2019,
arXiv:1905.00414. Deviations: the columns of representations are centred before the paper's eq. 4,
which equals its HSIC form only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

ROUNDING = 16  # times the type's precision: a smaller share of the whole is rounding


def centre_kernel(kernel: Tensor) -> Tensor:
    """Return H K H with H = I - 11^T / L, whose rows and columns sum to 0."""
    kernel = kernel - kernel.mean(0)
    return kernel - kernel.mean(1, keepdim=True)


def unit(centre: Tensor, uncentred: Tensor) -> Tensor:
    """Return a centred matrix scaled to length 1, or 0 if only rounding was left of the whole.

    uncentred: the matrix before centring. The factor has no gradient: the measures must not depend
    on the scale of the result.
    """
    size = length(centre, uncentred)
    return centre * torch.where(size == 0, 0.0, 1 / size)


def length(centre: Tensor, uncentred: Tensor) -> Tensor:
    """Return the length of a centred matrix, float64; 0 if only rounding was left of the whole.

    uncentred: the matrix before centring.
    """
    size = torch.linalg.vector_norm(centre.detach(), dtype=torch.float64)
    least = (
        ROUNDING
        * torch.finfo(uncentred.dtype).eps
        * torch.linalg.vector_norm(uncentred.detach(), dtype=torch.float64)
    )
    return torch.where(size <= least, 0.0, size)


def features(a: Tensor) -> Tensor:
    """Return a representation with centred columns, scaled to length 1; [L, d]."""
    return unit(a - a.mean(0), a)


def normalise_kernel(kernel: Tensor) -> Tensor:
    """Return a kernel centred and scaled to length 1, as the target of many comparisons."""
    return unit(centre_kernel(kernel), kernel)


def linear_cka(a: Tensor, b: Tensor) -> Tensor:
    """Return the CKA of two representations with linear kernels, a scalar in 0..1.

    ||B^T A||_F^2 / (||A^T A||_F ||B^T B||_F) on centred columns, or the same by kernels if that is
    cheaper. The widths of the representations may differ.
    """
    return agreement(ready(a), ready(b))


def pairwise_cka(representations: Sequence[Tensor]) -> Tensor:
    """Return the linear CKA of each pair of K representations, [K, K], symmetric."""
    prepared = [ready(a) for a in representations]
    table = torch.ones(len(prepared), len(prepared))
    for i, a in enumerate(prepared):
        for j, b in enumerate(prepared[:i]):
            table[i, j] = table[j, i] = agreement(a, b)
    return table


class Ready(NamedTuple):
    """A representation prepared for many comparisons.

    a: with centred columns, scaled to length 1.  spread: its `gram_norm`.
    """

    a: Tensor
    spread: Tensor


def ready(a: Tensor) -> Ready:
    a = features(a)
    return Ready(a, gram_norm(a))


def agreement(one: Ready, other: Ready) -> Tensor:
    """Return the linear CKA of two prepared representations."""
    a, b = one.a, other.a
    wide = a.shape[1] * b.shape[1] > len(a) * (a.shape[1] + b.shape[1])
    cross = ((a @ a.T) * (b @ b.T)).sum() if wide else (b.T @ a).square().sum()
    return ratio(cross, one.spread, other.spread)


def cka_to_kernel(a: Tensor, target: Tensor) -> Tensor:
    """Return the CKA of a representation's linear kernel and a kernel from `normalise_kernel`.

    tr(A^T T A) / (||A^T A||_F ||T||_F) on centred columns: about L^2 d multiplications. The kernel
    of a is not formed.
    """
    a = features(a)
    return ratio(((target @ a) * a).sum(), gram_norm(a), torch.linalg.matrix_norm(target))


def cka(a: Tensor, b: Tensor) -> Tensor:
    """Return the CKA of two kernels [L, L] of any kind, a scalar in 0..1.

    HSIC(a, b) / sqrt(HSIC(a, a) HSIC(b, b)).
    """
    a, b = normalise_kernel(a), normalise_kernel(b)
    return ratio((a * b).sum(), torch.linalg.matrix_norm(a), torch.linalg.matrix_norm(b))


def gram_norm(a: Tensor) -> Tensor:
    """Return ||A^T A||_F = ||A A^T||_F, computed from the smaller of the two matrices."""
    return torch.linalg.matrix_norm(a.T @ a if a.shape[1] <= len(a) else a @ a.T)


def ratio(cross: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return cross / (a b); 0 if one of a and b is 0, 1 if both are."""
    both = a * b
    return cross / torch.where(both == 0, 1.0, both) + ((a == 0) & (b == 0))


def rbf_kernel(a: Tensor, c: float = 1.0) -> Tensor:
    """Return the RBF kernel of the rows, exp(-||a_p - a_q||^2 / (2 sigma^2)), [L, L].

    sigma is c times the median distance of the rows, and has no gradient. The paper leaves the rule
    open; this one is that of Kornblith et al., section 4.
    """
    squares = squared_distances(a, a)
    return torch.exp(-precision(squares.detach(), c) * squares)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return the squared Euclidean distances of the rows of a and b, [n, m].

    Both are shifted by the mean of b, for precision. Distances within the rounding of the rows of b
    count as 0.
    """
    mean = b.detach().mean(0)
    least = (ROUNDING * torch.finfo(b.dtype).eps) ** 2 * b.detach().square().sum(1).max()
    a, b = a - mean, b - mean
    squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    return torch.where(squares <= least, 0.0, squares)


def precision(squares: Tensor, c: float) -> Tensor:
    """Return 1 / (2 sigma^2) from the squared distances of all pairs, [L, L].

    sigma is c times the median distance. If more than half of the pairs coincide, the mean square
    replaces the square of the median. If all distances are 0, the result is 0, which gives a
    constant kernel.
    """
    pairs = squares[torch.ones_like(squares, dtype=torch.bool).triu(1)]
    if not len(pairs):
        return squares.new_zeros(())
    middle = pairs.median()
    square = c**2 * torch.where(middle > 0, middle, pairs.mean())
    return torch.where(square == 0, 0.0, 0.5 / square)


def procrustes(a: Tensor, b: Tensor) -> Tensor:
    """Return the orthogonal Procrustes distance of two representations of one width, in 0..2.

    ||A||_F^2 + ||B||_F^2 - 2 ||A^T B||_*, on centred columns and at length 1: the squared distance
    after the best rotation, a scalar. A constant representation has length 0.
    Makhija et al., section 3.4; Ding et al., 2021, arXiv:2108.01661.
    """
    a, b = normal(a), normal(b)
    cross = a.T @ b
    if not torch.isfinite(cross).all():  # there are no singular values then; the result is nan
        return cross.sum() * torch.nan
    return a.square().sum() + b.square().sum() - 2 * torch.linalg.svdvals(cross).sum()


def normal(a: Tensor) -> Tensor:
    """Return a representation with centred columns, scaled to length 1, or 0 if it is constant.

    Gradients flow through the scaling.
    """
    a = features(a)
    length = torch.linalg.matrix_norm(a)
    return a / torch.where(length == 0, 1.0, length)
