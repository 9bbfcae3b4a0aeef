"""What each robust rule replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from hpcfed.core.params import Params
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.transforms.comparison import Comparison


class Choice(NamedTuple):
    """What a rule makes of updates: the mean of factors_k x_k + server v with weights_k.

    weights: [n], at least 0. If all are 0, the old value stays.
    factors: [n].
    server: [j], by which the vectors of the server are multiplied.
    noise: standard deviation of Gaussian noise on each value of the result.
    """

    weights: np.ndarray
    factors: np.ndarray
    server: np.ndarray = np.zeros(0)
    noise: float = 0.0


class Rule:
    """A robust rule. It compares complete updates (`choose`), or values (`combine`), or both.

    compares: whether it chooses by a comparison of updates.
    pairs: whether it compares them with one another; otherwise their lengths are enough, and their
    products with the server's vectors.
    combines: whether it combines values of one coordinate; otherwise the chosen ones are averaged.
    weighted: whether it takes into account the weights that clients have in the method's mean.
    one_mean: whether the method may compute only one mean in a round, that of its model.
    remembers: whether it needs the change that the server made in the round before.
    """

    compares = True
    pairs = True
    combines = False
    weighted = False
    remembers = False
    one_mean = False

    def least(self, attackers: int) -> int:
        """Return how many uploads the rule needs to choose among, against these attackers."""
        return 1

    def choose(self, updates: Comparison) -> Choice:
        """Return what becomes of the clients' updates."""
        raise NotImplementedError

    def combine(self, values: np.ndarray, weights: np.ndarray, attackers: np.ndarray) -> np.ndarray:
        """Return [m] values in the place of the means of values [n, m] with weights [n, m].

        Values count for nothing if their weight is 0; each column has a positive weight. The
        weights of clients that were not chosen are 0.
        attackers: [m], how many of the values of each column the rule takes for attackers'. With
        buckets, values are averages of groups, and each attacker may spoil another one.
        """
        raise NotImplementedError

    def server(self, fed: Federation, keep: Params, last: Params) -> list[Params]:
        """Return vectors of the server's own, with which updates are compared; collective.

        keep: what the mean replaces.  last: the change of this mean in the round before.
        """
        return []

    def compared(self, fed: Federation, k: int, name: str, update: Params) -> Params:
        """Return the vector of client k by which it is compared with others.

        name: of the mean in its round.  update: of this round.
        """
        return update


def attackers_among(n: int | np.ndarray, share: float) -> np.ndarray:
    """Return the number of attackers that a rule assumes among n clients: floor(share n), or 1.

    It is at least 1, though a round, or a class, may have few clients.
    """
    return np.maximum(1, np.floor(share * np.asarray(n) + 1e-9)).astype(int)
