"""Conformal prediction sets: the classes that a model cannot rule out, with a promise of coverage.

Angelopoulos et al. (RAPS), ICLR 2021, arXiv:2009.14193. The score of a class is the sum of the
probabilities of all that are at least as likely, itself included, and lam for each rank beyond
k_reg; the set of an example holds the classes whose score is at most a threshold. Deviation: scores
are not randomised, so that sets are a little larger than they need be.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from hpcfed.machine.devices import raised

START, RATE, PASSES, SETTLED = 1.3, 0.01, 10, 0.01  # of the temperature's descent


def scores(logits: Tensor, temperature: Tensor | float, lam: Tensor | float, k_reg: int) -> Tensor:
    """The score of each class, [n, C]; of equally likely classes the first ranks first."""
    p = F.softmax(raised(logits) / temperature, dim=1)
    ordered, order = p.sort(dim=1, descending=True, stable=True)
    rank = torch.arange(1, p.shape[1] + 1, device=p.device)
    total = ordered.cumsum(1) + lam * (rank - k_reg).clamp(min=0)
    return torch.empty_like(total).scatter(1, order, total)


def threshold(of_labels: Tensor, alpha: float) -> Tensor:
    """The ceil((n + 1)(1 - alpha))-th smallest of n scores of true labels, a scalar: sets of a new
    example then hold its label with probability 1 - alpha at least. Infinite where n is too small
    for that promise.
    """
    n = len(of_labels)
    k = math.ceil((n + 1) * (1 - alpha) - 1e-9)
    if k > n:
        return of_labels.new_full((), torch.inf)
    return of_labels.sort().values[k - 1]


def sets(found: Tensor, limit: Tensor | float) -> Tensor:
    """Which classes an example's set holds, [n, C], bool; an empty set gets the likeliest class.

    found: as `scores` gives them.
    """
    best = F.one_hot(found.argmin(1), found.shape[1]).bool()
    return (found <= limit) | best


def fit_temperature(logits: Tensor, y: Tensor) -> Tensor:
    """The temperature that makes the labels likely, a scalar: from 1.3 by gradient descent with
    rate 0.01, at most ten steps, ended by one below 0.01.

    The authors' code of FedType (JackqqWang/FedType) does so.
    """
    z, temperature = raised(logits).detach(), torch.full((), START, device=logits.device)
    for _ in range(PASSES):
        leaf = temperature.clone().requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(z / leaf, y), leaf)
        temperature = temperature - RATE * slope
        if abs(RATE * float(slope)) < SETTLED * RATE:
            break
    return temperature


def consensus(small: Tensor, large: Tensor) -> Tensor:
    """How far two models' sets agree, [n], in 0..1; 1 for equal sets. small, large: [n, C], bool.

    |S_l & S_s| / |S_l | S_s| where |S_l| <= |S_s|, else |S_l & S_s| / |S_s|.
    """
    both, either = (small & large).sum(1), (small | large).sum(1)
    size_s, size_l = small.sum(1), large.sum(1)
    return both / torch.where(size_l <= size_s, either, size_s).clamp(min=1)


def imitation(z: Tensor, inside: Tensor, margin: float) -> Tensor:
    """Mean over pairs of a class inside and one outside of max(0, z_out - z_in + margin), [n]; 0
    where there is no pair. z: logits [n, C].  inside: [n, C], bool.
    """
    pairs = inside[:, :, None] & ~inside[:, None, :]  # [n, in, out]
    apart = (z[:, None, :] - z[:, :, None] + margin).relu()
    return torch.where(pairs, apart, 0.0).sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)
