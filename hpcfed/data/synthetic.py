"""Synthetic(alpha, beta): a population of any size, whose clients make their examples when they are
used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hpcfed.core.rng import stream
from hpcfed.data.dataset import DataSet, Split

SHAPE, CLASSES = (1, 1, 60), 10
SPREAD = np.arange(1, 61) ** -0.6  # [60], standard deviations: the variances fall as j^-1.2
COMMON = 100  # clients whose test examples are the common test split, if there are as many


def load(*_: object) -> DataSet:
    """The data set without examples: these are the clients' own (`Synthetic`)."""
    none = Split(np.zeros((0, *SHAPE), np.float32), np.zeros(0, np.int64))
    return DataSet("synthetic", none, none, tuple(map(str, range(CLASSES))), (0.0,), (1.0,))


@dataclass(frozen=True)
class Synthetic:
    """Who holds what. Nothing is stored but the clients' sizes: 8 bytes a client.

    alpha: how much the clients' models differ.  beta: how much their inputs do.  examples: of each
    client; none: log-normal sizes.  test_share: size of a client's test set as a share of its
    training set.

    Li et al. (FedProx), MLSys 2020, arXiv:1812.06127, appendix C.1, sizes as in the authors' code
    (at least 50).
    Deviations: test examples are drawn beside the training examples, which the authors split.
    """

    seed: int
    clients: int
    alpha: float
    beta: float
    examples: int | None
    test_share: float

    @cached_property
    def sizes(self) -> np.ndarray:
        """Training examples of each client, [K], int64."""
        if self.examples is not None:
            return np.full(self.clients, self.examples)
        return (
            stream(self.seed, "synthetic", "sizes").lognormal(4, 2, self.clients).astype(np.int64)
            + 50
        )

    @cached_property
    def test_sizes(self) -> np.ndarray:
        """Test examples of each client, [K], int64."""
        return np.maximum(1, (self.sizes * self.test_share).astype(np.int64))

    def client_data(self, k: int) -> tuple[Split, Split]:
        """Training and test examples of client k: the same wherever and whenever they are made."""
        g, n = stream(self.seed, "synthetic", k), int(self.sizes[k])
        u, v = g.normal(0, self.alpha), g.normal(g.normal(0, self.beta), 1, len(SPREAD))
        weight, bias = g.normal(u, 1, (len(SPREAD), CLASSES)), g.normal(u, 1, CLASSES)
        total = n + int(self.test_sizes[k])
        x = v + SPREAD * g.standard_normal((total, len(SPREAD)))
        y = (x @ weight + bias).argmax(1)
        images = x.astype(np.float32).reshape(total, *SHAPE)
        return Split(images[:n], y[:n]), Split(images[n:], y[n:])

    def common(self) -> Split:
        """The test examples of the first clients, as the common test split."""
        tests = [self.client_data(k)[1] for k in range(min(COMMON, self.clients))]
        return Split(np.concatenate([t.x for t in tests]), np.concatenate([t.y for t in tests]))

    @property
    def public(self) -> np.ndarray:
        """No example is without a client."""
        return np.zeros(0, np.int64)

    @property
    def everything(self) -> np.ndarray:
        """No row of any table is a client's."""
        return np.zeros(0, np.int64)

    def __getitem__(self, k: int) -> np.ndarray:
        """Training examples of each class that client k has, [C]: a row of the label counts, made
        when it is wanted.
        """
        return np.bincount(self.client_data(k)[0].y, minlength=CLASSES)

    def save(self, path: Path, run_id: str = "") -> None:
        """Nothing: the job says all about a population."""
