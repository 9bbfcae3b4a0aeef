"""Synthetic(alpha, beta): a population of any size, whose clients make their examples on demand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcfed.core.rng import stream
from hpcfed.data.dataset import DataSet, Split
from hpcfed.tasks import Task

SHAPE, CLASSES = (1, 1, 60), 10
SPREAD = np.arange(1, 61) ** -0.6  # [60], standard deviations: the variances fall as j^-1.2
COMMON = 100  # clients whose test examples are the common test split, if there are as many


def load(*_: object) -> DataSet:
    """Load the data set without examples: each client of `Synthetic` makes its own.

    Inputs are [n, 1, 1, 60], float32, with 10 classes. Name, folder and download have no effect.
    Li et al. (FedProx), MLSys 2020, arXiv:1812.06127, appendix C.1.
    """
    none = Split(np.zeros((0, *SHAPE), np.float32), np.zeros(0, np.int64))
    return DataSet("synthetic", none, none, tuple(map(str, range(CLASSES))), (0.0,), (1.0,))


@dataclass(frozen=True)
class Synthetic:
    """Population of clients, of which only the sizes are stored: 8 bytes per client.

    alpha: variation of the clients' models.
    beta: variation of the clients' inputs.
    examples: training examples of each client; None for log-normal sizes.
    test_share: size of a client's test set as a share of its training set.

    Li et al. (FedProx), MLSys 2020, arXiv:1812.06127, appendix C.1, with sizes as in the authors'
    code (at least 50).
    Deviations: test examples are drawn in addition to the training examples, which the authors
    split.
    """

    seed: int
    clients: int
    alpha: float
    beta: float
    examples: int | None
    test_share: float

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of training examples of each client, [K], int64."""
        if self.examples is not None:
            return np.full(self.clients, self.examples)
        return (
            stream(self.seed, "synthetic", "sizes").lognormal(4, 2, self.clients).astype(np.int64)
            + 50
        )

    @cached_property
    def test_sizes(self) -> np.ndarray:
        """Number of test examples of each client, [K], int64."""
        return np.maximum(1, (self.sizes * self.test_share).astype(np.int64))

    def client_data(self, k: int) -> tuple[Split, Split]:
        """Return the training and test examples of client k, which are the same at every call."""
        g, n = stream(self.seed, "synthetic", k), int(self.sizes[k])
        u, v = g.normal(0, self.alpha), g.normal(g.normal(0, self.beta), 1, len(SPREAD))
        weight, bias = g.normal(u, 1, (len(SPREAD), CLASSES)), g.normal(u, 1, CLASSES)
        total = n + int(self.test_sizes[k])
        x = v + SPREAD * g.standard_normal((total, len(SPREAD)))
        y = (x @ weight + bias).argmax(1)
        images = x.astype(np.float32).reshape(total, *SHAPE)
        return Split(images[:n], y[:n]), Split(images[n:], y[n:])

    def common(self) -> Split:
        """Return the test examples of the first clients, as the common test split."""
        tests = [self.client_data(k)[1] for k in range(min(COMMON, self.clients))]
        return Split(np.concatenate([t.x for t in tests]), np.concatenate([t.y for t in tests]))

    @property
    def public(self) -> np.ndarray:
        """Public examples: none, because every example belongs to a client."""
        return np.zeros(0, np.int64)

    @property
    def everything(self) -> np.ndarray:
        """Rows of the training split that clients hold: none, as clients make their own."""
        return np.zeros(0, np.int64)

    def counts(self, labels: np.ndarray, task: Task, outputs: int) -> Synthetic:
        """Return the label counts, [K, C]: this population, which has a row of them on demand."""
        return self

    def __getitem__(self, k: int) -> np.ndarray:
        """Return the number of training examples of each class that client k has, [C].

        This row of the label counts is computed on demand.
        """
        return np.bincount(self.client_data(k)[0].y, minlength=CLASSES)
