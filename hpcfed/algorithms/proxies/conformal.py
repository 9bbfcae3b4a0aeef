"""Conformal prediction sets: the classes that a model cannot rule out, with guaranteed coverage.

Angelopoulos et al. (RAPS), ICLR 2021, arXiv:2009.14193. The score of a class is the sum of the
probabilities of all classes that are at least as likely, itself included, plus lam for each rank
beyond k_reg. The set of an example holds the classes whose score is at most a threshold.
Deviation: scores are not randomised, so sets are a little larger than necessary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from hpcfed.machine.devices import raised

# the temperature's gradient descent: first value, rate, most steps, slope at which it ends
START, RATE, PASSES, SETTLED = 1.3, 0.01, 10, 0.01


def scores(logits: Tensor, temperature: Tensor | float, lam: Tensor | float, k_reg: int) -> Tensor:
    """Return the score of each class, [n, C]; of equally likely classes the first ranks first."""
    p = F.softmax(raised(logits) / temperature, dim=1)
    ordered, order = p.sort(dim=1, descending=True, stable=True)
    rank = torch.arange(1, p.shape[1] + 1, device=p.device)
    total = ordered.cumsum(1) + lam * (rank - k_reg).clamp(min=0)
    return torch.empty_like(total).scatter(1, order, total)


def threshold(of_labels: Tensor, alpha: float) -> Tensor:
    """Return the ceil((n + 1)(1 - alpha))-th smallest of n scores of true labels, a scalar.

    Sets with this threshold hold the label of a new example with probability at least 1 - alpha.
    The threshold is infinite if n is too small for that.
    """
    n = len(of_labels)
    k = math.ceil((n + 1) * (1 - alpha) - 1e-9)
    if k > n:
        return of_labels.new_full((), torch.inf)
    return of_labels.sort().values[k - 1]


def sets(found: Tensor, limit: Tensor | float) -> Tensor:
    """Return which classes are in each example's set, [n, C], bool.

    found: the result of `scores`. An empty set gets the likeliest class.
    """
    best = F.one_hot(found.argmin(1), found.shape[1]).bool()
    return (found <= limit) | best


def fit_temperature(logits: Tensor, y: Tensor) -> Tensor:
    """Return the temperature that makes the labels most likely, a scalar, by gradient descent.

    The descent starts at 1.3 with rate 0.01, and ends after ten steps, or at a slope below 0.01.
    The authors' code of FedType (JackqqWang/FedType) does the same.
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
    """Return how far two models' sets agree, [n], in 0..1; 1 for equal sets.

    small, large: [n, C], bool. The result is |S_l & S_s| / |S_l | S_s| where |S_l| <= |S_s|, else
    |S_l & S_s| / |S_s|.
    """
    both, either = (small & large).sum(1), (small | large).sum(1)
    size_s, size_l = small.sum(1), large.sum(1)
    return both / torch.where(size_l <= size_s, either, size_s).clamp(min=1)


def imitation(z: Tensor, inside: Tensor, margin: float) -> Tensor:
    """Return the mean of max(0, z_out - z_in + margin) over pairs of classes, [n].

    A pair is one class inside the set and one outside. The result is 0 if there is no pair.
    z: logits [n, C].  inside: [n, C], bool.
    """
    pairs = inside[:, :, None] & ~inside[:, None, :]  # [n, in, out]
    apart = (z[:, None, :] - z[:, :, None] + margin).relu()
    return torch.where(pairs, apart, 0.0).sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)
