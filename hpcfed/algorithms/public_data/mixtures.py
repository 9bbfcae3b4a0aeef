"""Coefficients with which KT-pFL mixes clients' predictions or models, and how they are learnt.

Zhang et al., NeurIPS 2021, arXiv:2111.02862. The coefficients are a matrix c [K, K]: row n, whose
values are >= 0 and sum to 1, has the parts of all clients in the mixture of client n.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from hpcfed.core.simplex import nearest_on_simplex

TINY = 1e-30  # lower bound: a soft prediction that has underflowed to 0 still has a logarithm
Distance = Literal["kl", "mse"]


def among(coeff: Tensor, ks: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the rows and columns of these clients, [m, m], scaled to row sums 1, and the old sums.

    The old sums of the rows are [m, 1]. A row that gives these clients nothing becomes uniform.
    """
    rows = coeff[list(ks)][:, list(ks)]
    mass = rows.sum(1, keepdim=True)
    return torch.where(mass > 0, rows / mass.clamp(min=TINY), 1 / len(ks)), mass


def put(coeff: Tensor, ks: Sequence[int], rows: Tensor, mass: Tensor) -> Tensor:
    """Return the coefficients with these clients' new rows: the inverse of `among`."""
    new, at = coeff.clone(), torch.as_tensor(list(ks), device=coeff.device)
    new[at[:, None], at] = rows * mass
    return new


def of_predictions(rows: Tensor, soft: Tensor, distance: Distance = "kl") -> Tensor:
    """Return the gradient of each client's distance from its mixture to its own prediction.

    The gradient is with respect to the rows, [m, m].
    soft: [m, U, C], float64.  With g_n = sum_m c_nm s_m the distance is KL(g_n || s_n), or the
    squared distance of both; it is summed over classes, with the mean over the U examples.
    """
    mixed = torch.tensordot(rows, soft, 1)
    slope = (
        2 * (mixed - soft)
        if distance == "mse"
        else mixed.clamp(min=TINY).log() - soft.clamp(min=TINY).log() + 1
    )
    return slope.flatten(1) @ soft.flatten(1).T / soft.shape[1]


def of_weights(rows: Tensor, gram: Tensor) -> Tensor:
    """Return the gradient with respect to the rows, [m, m], of ||w_n - sum_m c_nm w_m||^2.

    gram: [m, m], <w_i, w_j>.
    """
    return 2 * (rows @ gram - gram)


def update_coefficients(rows: Tensor, gradient: Tensor, lr: float, rho: float) -> Tensor:
    """Take one gradient step with the penalty rho ||c - 1/m||^2; project rows onto the simplex.

    The step is at most 1 / (2 rho), beyond which the penalty alone would overshoot.
    """
    step = min(lr, 1 / (2 * rho)) if rho else lr
    return nearest_on_simplex(rows - step * (gradient + 2 * rho * (rows - 1 / len(rows))))
