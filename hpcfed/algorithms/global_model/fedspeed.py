"""FedSpeed: FedDyn whose clients compute gradients where one step of ascent leads.

Sun et al. (FedSpeed: Larger Local Interval, Less Communication Round, and Higher Generalization
Accuracy), ICLR 2023, arXiv:2302.10429. In the paper's words alpha is 1 / lambda, and g_k the
correction of the prox-term. g is the gradient of the same batch.

Objective: F_k(w + rho g / ||g||) - <g_k, w> + alpha / 2 ||w - w_t||^2, g = grad F_k(w)
Server: h <- h - alpha / K sum_k (w_k - w_t); w <- mean_k w_k - h / alpha
Round:
1. The server sends its model, w_t, to the cohort.
2. In each step a client goes rho up the gradient of its batch, and computes the gradient there.
3. It steps down this gradient and those of the linear and the proximal term, which it takes where
   it was before the ascent.
4. It updates its g_k by -alpha (w_k - w_t), keeps it, and sends its model.
5. The server updates h and subtracts h / alpha from the mean of the models.

Deviations: as in the authors' code, the step of ascent has length rho, and the gradient is the one
after it; in the paper it is rho times the gradient, and both gradients are mixed. The correction of
the server is that of all clients, as in this code; in the paper it is that of the cohort. Otherwise
those of FedDyn and FedSAM.
"""

from functools import partial
from typing import Any

from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from hpcfed import Client, Guide, Params
from hpcfed.algorithms.global_model.feddyn import FedDyn
from hpcfed.training.losses import at_ascent


class FedSpeed(FedDyn):
    """With rho = 0 it is FedDyn, bit for bit."""

    guide = Guide(
        data="different labels",
        sent="all weights",
        won="above FedAvg, SCAFFOLD, FedDyn and FedSAM on images with long local training",
    )

    alpha: PositiveFloat = 0.1
    """Weight of the proximal term, and step of the linear one."""
    rho: NonNegativeFloat = 0.1
    """Length of the step of ascent."""

    @property
    def step_passes(self) -> int:
        return 2 if self.rho else 1

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Any) -> Tensor:
        return at_ascent(partial(super().loss, client, state), model, x, y, self.rho)
