"""FLAME: the largest group of updates with similar directions, clipped, with noise.

Nguyen et al., USENIX Security 2022, arXiv:2101.02281. HDBSCAN finds a cluster of more than half of
the clients by the cosine distances of their updates; its members are shortened to the median length
S of all updates and averaged, clients alike; then Gaussian noise of deviation lambda S is added.

Deviations: cosines are those of updates, not of models, which all point in the direction of the
model that they received. The noise is no mechanism of privacy, and no account is kept of it.
"""

from __future__ import annotations

import numpy as np
from sklearn.cluster import HDBSCAN

from hpcfed.federation.transforms.comparison import Comparison
from hpcfed.federation.transforms.defence.clipping import shrinking
from hpcfed.federation.transforms.defence.rule import Choice, Rule


class Flame(Rule):
    """The clipped mean of the majority's cluster, with noise.

    noise: lambda.
    """

    def __init__(self, noise: float) -> None:
        self.noise = noise

    def choose(self, updates: Comparison) -> Choice:
        lengths = updates.lengths
        bound = float(np.median(lengths))
        members = majority(1 - updates.cosines).astype(float)
        return Choice(members, shrinking(lengths, bound), noise=self.noise * bound)


def majority(distances: np.ndarray) -> np.ndarray:
    """Return who is in a cluster of more than half of the clients, [n]; all, if there is none."""
    n = len(distances)
    if n < 3:
        return np.ones(n, bool)
    distances = np.clip(distances, 0.0, 2.0)
    np.fill_diagonal(distances, 0.0)
    clusters = HDBSCAN(
        min_cluster_size=n // 2 + 1,
        min_samples=1,
        metric="precomputed",
        allow_single_cluster=True,
        copy=True,
    ).fit_predict(distances)
    members = (
        clusters == np.bincount(clusters[clusters >= 0]).argmax()
        if (clusters >= 0).any()
        else np.ones(n, bool)
    )
    return members
