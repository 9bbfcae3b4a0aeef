"""Conformal prediction sets: the classes that a model cannot rule out, with guaranteed coverage.

Angelopoulos et al. (RAPS), ICLR 2021, arXiv:2009.14193. The score of a class is the sum of the
probabilities of all classes that are at least as likely, itself included, plus lam for each rank
beyond k_reg. The set of an example holds the classes whose score is at most a threshold.
Deviation: scores are not randomised, so sets are a little larger than necessary.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from hpcfed.models.precision import raised

# the temperature's SGD: first value, rate, most passes, change in a pass at which it ends
START, RATE, PASSES, SETTLED = 1.3, 0.01, 10, 0.01
LEAST = 0.05  # lowest temperature


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
    if not enough(len(of_labels), alpha):
        return of_labels.new_full((), torch.inf)
    return of_labels.sort().values[position(len(of_labels), alpha) - 1]


def position(n: int, alpha: float) -> int:
    """Return ceil((n + 1)(1 - alpha))."""
    return math.ceil((n + 1) * (1 - alpha) - 1e-9)


def enough(n: int, alpha: float) -> bool:
    """Return whether n examples calibrate sets that can leave a class out."""
    return position(n, alpha) <= n


def sets(values: Tensor, limit: Tensor | float) -> Tensor:
    """Return which classes are in each example's set, [n, C], bool.

    values: the result of `scores`. An empty set gets the likeliest class.
    """
    best = F.one_hot(values.argmin(1), values.shape[1]).bool()
    return (values <= limit) | best


def fit_temperature(logits: Tensor, y: Tensor, batch: int) -> Tensor:
    """Return a temperature that makes the labels more likely than that of the start, a scalar.

    It is found as in the code of RAPS and of FedType (JackqqWang/FedType): SGD from 1.3 with rate
    0.01, over batches in the order of the examples, for at most ten passes, or until one changes it
    by less than 0.01. So it does not reach the likeliest temperature where that is far from 1.3 or
    examples are few; sets cover what they promise at any temperature, because thresholds are
    calibrated after it.
    """
    z, temperature = raised(logits).detach(), torch.full((), START, device=logits.device)
    of_labels = z.gather(1, y[:, None])[:, 0]
    for _ in range(PASSES):
        before = temperature
        for scores_of, of_label in zip(z.split(batch), of_labels.split(batch), strict=True):
            expected = (F.softmax(scores_of / temperature, dim=1) * scores_of).sum(1)
            slope = (of_label - expected).mean() / temperature**2  # of the mean cross-entropy
            temperature = (temperature - RATE * slope).clamp(min=LEAST)
        if abs(float(temperature - before)) < SETTLED:
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
