"""Coordinate-wise median and trimmed mean.

Yin, Chen, Kannan and Bartlett, ICML 2018, arXiv:1803.01498. Each coordinate is a problem of its
own: the median of its values; or the mean of those that remain if the b smallest and the b largest
ones are left out, for b attackers among n clients.

With the clients' weights in the method's mean: the median has half of the weight on each side (if
that is between two values, it is their mean), and the trimmed mean leaves out b / n of the weight
on each side. With equal weights both are the usual ones.

Both withstand fewer than half of the clients (of their weight), the trimmed mean b of them.
Deviation from FedML's code: for an even number of clients the median is the mean of the two values
in the middle, not the smaller one.
"""

from __future__ import annotations

import numpy as np

from hpcfed.federation.transforms.defence.rule import Rule


class Median(Rule):
    """The weighted median of each coordinate."""

    compares, combines, weighted = False, True, True

    def combine(self, values: np.ndarray, weights: np.ndarray, attackers: np.ndarray) -> np.ndarray:
        values, weights = in_order(values, weights)
        summed = np.cumsum(weights, axis=0)
        half = summed[-1] / 2
        rounding = len(values) * np.finfo(float).eps * summed[-1]  # of sums of weights
        lower = (summed >= half - rounding).argmax(axis=0)
        upper = (summed > half + rounding).argmax(axis=0)
        columns = np.arange(values.shape[1])
        low, high = values[lower, columns], values[upper, columns]
        return np.where(low == high, low, (low + high) / 2)


class TrimmedMean(Rule):
    """The mean of each coordinate without its smallest and largest values."""

    compares, combines, weighted = False, True, True

    def combine(self, values: np.ndarray, weights: np.ndarray, attackers: np.ndarray) -> np.ndarray:
        values, weights = in_order(values, weights)
        present = (weights > 0).sum(axis=0)
        summed = np.cumsum(weights, axis=0)
        most = (present - 1) // 2  # then the median remains
        left_out = summed[-1] * np.minimum(attackers, most) / present
        end = np.minimum(summed, summed[-1] - left_out)
        counted = np.maximum(0.0, end - np.maximum(summed - weights, left_out))
        return (counted * values).sum(axis=0) / counted.sum(axis=0)


def in_order(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of each column in ascending order and their weights.

    Those without weight come last, as 0. One weight for all needs no order of its own, which takes
    a tenth of the time.
    """
    if (weights == weights[0, 0]).all():
        return np.sort(values, axis=0) + 0.0, weights
    columns = np.ascontiguousarray(np.where(weights > 0, values, np.inf).T)
    order = np.argsort(columns, axis=1, kind="stable")
    values, weights = (np.take_along_axis(x, order, axis=1).T for x in (columns, weights.T))
    return np.where(weights > 0, values, 0.0) + 0.0, weights
