"""Weights of neighbours: mixing matrices of a graph, and the sums that they stand for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Literal

import numpy as np

from hpcfed.algorithms.decentralised.topology import graph
from hpcfed.core.params import Params

Weights = Literal["ccs", "ccs-rates", "metropolis", "uniform"]


@cache
def mixing(kind: Weights, of: tuple[Any, ...], rates: tuple[float, ...] = ()) -> np.ndarray:
    """W [n, n] of a graph, row i the weights with which client i averages.

    of: arguments of `graph`.  rates: how often each client averages, for ccs-rates.
    """
    links = graph(*of)
    if kind == "ccs-rates":
        return ccs(links, np.array(rates))
    return {"ccs": ccs, "metropolis": metropolis, "uniform": uniform}[kind](links)


def metropolis(links: np.ndarray) -> np.ndarray:
    """W [n, n]: 1 / (1 + max(degree_i, degree_j)) for neighbours, the rest for oneself; symmetric,
    rows sum to 1.

    Xiao, Boyd and Kim, Journal of Parallel and Distributed Computing 67, 2007.
    """
    degree = links.sum(1)
    return with_self(np.where(links, 1 / (1 + np.maximum.outer(degree, degree)), 0.0))


def uniform(links: np.ndarray) -> np.ndarray:
    """W [n, n]: the plain mean of oneself and the neighbours; rows sum to 1, symmetric where
    degrees are equal.
    """
    return with_self(links / (1.0 + links.sum(1, keepdims=True)))


def ccs(links: np.ndarray, rate: np.ndarray | None = None) -> np.ndarray:
    """W [n, n] of SWIFT's communication coefficient selection; rows sum to 1.

    By falling degree, each client proposes to those neighbours whose weight is open an equal part
    of what its fixed weights leave it; between equal degrees the smaller proposal counts, and no
    weight is larger than the lighter client's own 1 / (degree + 1), so that nobody's own weight is
    negative. Without rates W is symmetric.
    rate: [n], how often each client averages. Row i is then slowed by min(rate) / rate_i, so that
    the expected mixing rate_i W_ij is symmetric. Bornstein et al. (SWIFT), ICLR 2023,
    arXiv:2210.14026.
    """
    degree, weight = links.sum(1), np.zeros(links.shape)
    for d in sorted(set(degree.tolist()), reverse=True):
        same = np.flatnonzero(degree == d)
        fixed = links & (degree > d)[None, :]
        left = (1 - (weight * fixed).sum(1)) / ((links & ~fixed).sum(1) + 1)
        for i in same:
            for j in np.flatnonzero(links[i] & (degree <= d)):
                limit = left[j] if degree[j] == d else 1 / (degree[j] + 1)
                weight[i, j] = weight[j, i] = min(left[i], limit)
    if rate is not None:
        weight = weight * (rate.min() / rate)[:, None]
    return with_self(weight)


def with_self(weight: np.ndarray) -> np.ndarray:
    """The weights of neighbours, and for oneself what is missing to 1."""
    return weight + np.diag(1 - weight.sum(1))


def mix(rows: Mapping[int, np.ndarray], values: Iterable[tuple[int, Params]]) -> dict[int, Params]:
    """sum_j W_ij value_j in float64, for several i at once, added in the order in which the values
    come.

    rows: by i, [n].  values: (j, model) one after the other; only those of weight > 0 count.
    """
    sums: dict[int, Params] = {}
    for j, value in values:
        for i, row in rows.items():
            if row[j]:
                part = float(row[j]) * double(value)
                sums[i] = sums[i] + part if i in sums else part
    return sums


def double(value: Params) -> Params:
    """In float64."""
    return value.map(lambda v: v.double())


def add_step(
    mixed: Params, before: Params, after: Params, statistics: Collection[str] = (), own: float = 1.0
) -> Params:
    """The mixed models, float64, plus the local step from `before` to `after`; in the type of
    these.

    statistics: names of batch statistics. Theirs is the mean with `after` in place of `before`, for
    a variance that the whole step were added to could become negative.  own: the client's own
    weight in the mean.
    """
    step = double(after) - double(before)
    total = mixed + Params(
        {name: v * float(own) if name in statistics else v for name, v in step.items()}
    )
    return Params({name: value.to(before[name].dtype) for name, value in total.items()})
