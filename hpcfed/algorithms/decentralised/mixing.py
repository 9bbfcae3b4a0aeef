"""Mixing matrices of a graph, the weights of neighbours, and weighted sums of their models."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Any, Literal

import numpy as np

from hpcfed import Params
from hpcfed.algorithms.decentralised.topology import graph

Weights = Literal["ccs", "ccs-rates", "metropolis", "uniform"]


@cache
def mixing(kind: Weights, of: tuple[Any, ...], rates: tuple[float, ...] = ()) -> np.ndarray:
    """Return the mixing matrix W [n, n] of a graph; row i has the weights of client i's average.

    of: arguments of `graph`.
    rates: how often each client averages, for ccs-rates.
    """
    links = graph(*of)
    if kind == "ccs-rates":
        return ccs(links, np.array(rates))
    return {"ccs": ccs, "metropolis": metropolis, "uniform": uniform}[kind](links)


def metropolis(links: np.ndarray) -> np.ndarray:
    """Return the Metropolis weights W [n, n]; symmetric, rows sum to 1.

    The weight of neighbours is 1 / (1 + max(degree_i, degree_j)); the rest is a client's own
    weight.
    Xiao, Boyd and Kim, Journal of Parallel and Distributed Computing 67, 2007.
    """
    degree = links.sum(1)
    return with_self(np.where(links, 1 / (1 + np.maximum.outer(degree, degree)), 0.0))


def uniform(links: np.ndarray) -> np.ndarray:
    """Return W [n, n] of the plain mean over a client and its neighbours; rows sum to 1.

    W is symmetric if all degrees are equal.
    """
    return with_self(links / (1.0 + links.sum(1, keepdims=True)))


def ccs(links: np.ndarray, rate: np.ndarray | None = None) -> np.ndarray:
    """Return W [n, n] of SWIFT's communication coefficient selection; rows sum to 1.

    Clients are processed by falling degree. Each client divides what its fixed weights leave
    equally among itself and the neighbours whose weight is not fixed yet, and proposes this part to
    them. Between equal degrees the smaller proposal counts. No weight is larger than 1 / (degree +
    1) of the client with the smaller degree, so that no client's own weight is negative. Without
    rates W is symmetric.
    rate: [n], how often each client averages. Row i is then multiplied by min(rate) / rate_i, so
    that the expected mixing rate_i W_ij is symmetric.
    Bornstein et al. (SWIFT), ICLR 2023, arXiv:2210.14026.
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
    """Add each client's own weight, so that rows sum to 1."""
    return weight + np.diag(1 - weight.sum(1))


def mix(
    rows: Mapping[int, np.ndarray],
    values: Iterable[tuple[int, Params]],
    received: Callable[[int, int, Params], Params] = lambda i, j, value: value,
) -> dict[int, Params]:
    """Return sum_j W_ij value_j in float64 for several i, added in the order of the values.

    rows: rows of W by i, [n].
    values: (j, model) one after the other; only those of weight > 0 count.
    received: (i, j, model of j) -> what i has of it.
    """
    sums: dict[int, Params] = {}
    for j, value in values:
        for i, row in rows.items():
            if row[j]:
                part = float(row[j]) * double(received(i, j, value))
                sums[i] = sums[i] + part if i in sums else part
    return sums


def double(value: Params) -> Params:
    """Convert all tensors to float64."""
    return value.map(lambda v: v.double())


def add_step(
    mixed: Params,
    before: Params,
    after: Params,
    statistics: Collection[str] = (),
    self_weight: float = 1.0,
) -> Params:
    """Add the local step from `before` to `after` to the mixed models.

    mixed: float64; the result has the type of `before`.
    statistics: names of batch statistics. In their mean `after` replaces `before`: if the whole
    step were added, a variance could become negative.
    self_weight: the client's weight in the mean.
    """
    step = double(after) - double(before)
    total = mixed + Params(
        {name: v * float(self_weight) if name in statistics else v for name, v in step.items()}
    )
    return Params({name: value.to(before[name].dtype) for name, value in total.items()})
