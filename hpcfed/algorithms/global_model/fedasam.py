"""FedASAM: FedSAM whose step of ascent follows the scale of each weight.

Caldarola et al. (Improving Generalization in Federated Learning by Seeking Flat Minima), ECCV 2022,
arXiv:2203.11834, with the step of Kwon et al. (ASAM), ICML 2021, arXiv:2102.11600. g is the
gradient of the same batch, and T scales each of its entries.

Objective: F_k(w + rho T^2 g / ||T g||), g = grad F_k(w), T = |w| + eta
Server: w <- sum_k p_k w_k
Round:
1. The server sends its model to the cohort.
2. In each step a client goes up the scaled gradient of its batch, and computes the gradient there.
3. It steps down this gradient from where it was before the ascent.
4. It sends its model, and the server takes the weighted mean.
5. With average_every the run ends with the mean of the server's models of the later rounds.

Deviations: T is 1 for parameters without "weight" in their names (biases), as in the authors' code.
Otherwise those of FedSAM.
"""

from functools import partial
from typing import Any

from pydantic import NonNegativeFloat
from torch import Tensor

from hpcfed import Client, Guide, Params
from hpcfed.algorithms.global_model.fedsam import FedSAM
from hpcfed.config.conditions import field
from hpcfed.training.losses import at_ascent


class FedASAM(FedSAM):
    """With rho = 0 it is FedAvg, bit for bit; if all |w| + eta are 1 it is FedSAM."""

    guide = Guide(
        data="different labels",
        sent="all weights",
        won="with SWA above FedAvg and FedSAM on images, most with few classes per client",
    )

    rho: NonNegativeFloat = 0.7
    """Length of the step of ascent, relative to the weights."""
    eta: NonNegativeFloat = field(0.2, used_if="rho")
    """Added to the scale of each weight."""

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Any) -> Tensor:
        plain = partial(super(FedSAM, self).loss, client, state)
        return at_ascent(plain, model, x, y, self.rho, self.eta)
