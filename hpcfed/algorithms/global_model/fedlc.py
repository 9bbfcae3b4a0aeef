"""FedLC: margins by the client's own numbers of examples calibrate the logits of its classes.

Zhang et al. (Federated Learning with Label Distribution Skew via Logits Calibration), ICML 2022,
arXiv:2209.00189, section 4. f_c(x) are the logits, n_(k,c) the client's examples of class c. The
paper's sum over pairs of classes, log(1 + sum_c exp(f_c - f_y + tau (n_y^(-1/4) - n_c^(-1/4)))), is
this cross-entropy.

Objective: CE(softmax(f_c(x) - tau n_(k,c)^(-1/4)), y)
Server: w <- sum_k p_k w_k
Round:
1. The server sends its model to the cohort.
2. A client subtracts tau n_(k,c)^(-1/4) from the logit of each class c; classes that it does not
   have are left out of the softmax.
3. It trains the model with these logits and sends it.
4. The server takes the weighted mean of the models.

Deviations: the text does not give tau. Public codes have 0.1 to 1. The printed form without the 1
in the logarithm, which has no minimum, is not used, as in all of them.
"""

from typing import ClassVar

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from hpcfed import Guide
from hpcfed.algorithms.global_model.calibrated import Calibrated


class FedLC(Calibrated):
    """FedAvg with calibrated logits; tau = 0 is FedAvg if each client has all classes."""

    guide = Guide(
        data="different labels, rare or missing ones too",
        sent="all weights",
        won="images with Dirichlet labels or few classes: above FedProx, SCAFFOLD, MOON, FedRS",
    )

    needs_classes: ClassVar[str] = "it calibrates the logits of classes by their examples"

    tau: NonNegativeFloat = 1.0
    """Factor of the margins; 0: only classes that the client does not have are left out."""

    def calibration(self, counts: np.ndarray) -> Tensor:
        return margins(counts, self.tau)

    def calibrate(self, logits: Tensor, calibration: Tensor) -> Tensor:
        return logits - calibration


def margins(counts: np.ndarray, tau: float) -> Tensor:
    """Return the margins tau n_c^(-1/4) of the classes, [C]; infinite for a class without examples.

    counts: examples of each class that the client has, [C].
    """
    n = torch.from_numpy(counts).float()
    return torch.where(n > 0, tau * n.clamp(min=1) ** -0.25, torch.inf)
