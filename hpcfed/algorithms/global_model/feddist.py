"""FedDist: the server moves only part of the way from its model to the mean of the clients' models.

A baseline of Long et al., World Wide Web 26, 2023, arXiv:2108.08647, tables 2 and 3. FedDist+WS
weighs clients by examples (weighting = "samples"). It is not the FedDist of Ek et al., PerCom 2021.

Objective: F_k(w)
Server: w <- w - eps / |S| sum_k (w - w_k)
Round:
1. The server sends its model to the cohort.
2. Each client trains it and sends it.
3. The server goes the share eps of the way to the mean of the models.

Deviations: the public code of +WS has eps = 1, divides by |S| once more, and uses a name that it
never sets.
Float buffers of batch normalisation are updated like parameters.
"""

from typing import Literal

from hpcfed import Federation, Guide, Params, RoundBased, Share
from hpcfed.config.conditions import field


class FedDist(RoundBased):
    """FedAvg with a server's step; eps = 1 is FedAvg, bit for bit.

    With eps = 0 the model never changes.
    """

    guide = Guide(
        data="clusters of clients",
        sent="all weights",
        won="a baseline of FeSEM's tables",
    )

    weighting: Literal["samples", "uniform"] = field("uniform", used_if="eps")
    """Weight of a client in the mean: 1, or its number of training examples (FedDist+WS)."""
    eps: Share = 0.6
    """Fraction of the way to the mean."""

    def server(self, fed: Federation, state: Params, mean: Params, cohort: list[int]) -> Params:
        return mean if self.eps == 1 else (1 - self.eps) * state + self.eps * mean
