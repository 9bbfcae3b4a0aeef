"""FoolsGold: clients whose updates point in one direction, round after round, lose their weight.

Fung, Yoon and Beschastnikh, RAID 2020, arXiv:1808.04866, algorithm 1. Of each client the server
keeps the sum of its updates. With cs_ij the cosine of two of these sums and v_i = max_j cs_ij,
honest clients are pardoned, cs_ij <- cs_ij v_i / v_j if v_j > v_i; then

    a_i = 1 - max_j cs_ij,  a_i <- a_i / max a,  a_i <- ln(a_i / (1 - a_i)) + 0.5,

clipped to [0, 1], is the factor of a client's weight in the mean. It finds attackers that act
alike, and punishes honest clients that are alike: if all have a = 0, the old value stays. It does
not find a single attacker.

Deviation: sums are those of complete updates, not of the last layer. A value of 1 counts as 0.99
in the logarithm, as in the authors' code.
"""

from __future__ import annotations

import numpy as np

from hpcfed.core.params import Params
from hpcfed.federation.federation import Federation
from hpcfed.federation.transforms.comparison import Comparison
from hpcfed.federation.transforms.defence.rule import Choice, Rule

ROUNDED = 2.0**-16  # a smaller difference of a cosine to 1 is due to rounding
SUM = "foolsgold"  # in a client's memory: the sums of its updates, by the name of the mean


class FoolsGold(Rule):
    """Weights by how different a client's updates are from those of others."""

    weighted = True

    def choose(self, updates: Comparison) -> Choice:
        return Choice(updates.weights * unlike(updates.cosines), np.ones(updates.n))

    def compared(self, fed: Federation, k: int, name: str, update: Params) -> Params:
        memory = fed.clients[k].memory
        sums = dict(memory.get(SUM, {}))
        sums[name] = update + sums[name] if name in sums else update.clone()
        memory[SUM] = sums
        return sums[name]


def unlike(cosines: np.ndarray) -> np.ndarray:
    """Return the factor of each client's weight, [n] in [0, 1].  cosines: of the sums, [n, n]."""
    alike = cosines - np.eye(len(cosines))
    most = alike.max(axis=1)
    ratio = np.divide(most[:, None], most, out=np.ones_like(alike), where=most != 0)
    alike = np.where(most[:, None] < most, alike * ratio, alike)
    weights = np.clip(1 - alike.max(axis=1), 0.0, 1.0)
    weights[weights < ROUNDED] = 0.0
    if not weights.any():
        return weights
    weights = np.minimum(weights / weights.max(), 0.99)
    with np.errstate(divide="ignore"):
        return np.clip(np.log(weights / (1 - weights)) + 0.5, 0.0, 1.0)
