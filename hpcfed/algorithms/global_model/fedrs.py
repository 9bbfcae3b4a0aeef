"""FedRS: restricted softmax; a client scales down the logits of the classes that it does not have.

Li and Zhan, KDD 2021, doi:10.1145/3447548.3467254. a_k scales the logits f(x).

Objective: CE(softmax(a_k f(x)), y)
Server: w <- sum_k p_k w_k
Round:
1. The server sends its model to the cohort.
2. A client multiplies the logits of the classes that it does not have by alpha.
3. It trains the model with these logits and sends it.
4. The server takes the weighted mean of the models.

Deviations: the paper's classifier has no bias. Here the whole logit is scaled, bias included, so
that with alpha = 0 neither weights nor bias of a missing class change. The authors' code, the
preset `authors`, scales by how many examples a class has (form = "graded"). Its clipping of
gradients and its minimum of 5 local batches are not implemented.
"""

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from hpcfed import Guide, Share
from hpcfed.algorithms.global_model.calibrated import Calibrated
from hpcfed.config.conditions import field, other_than


class FedRS(Calibrated):
    """FedAvg with restricted softmax; alpha = 1 is FedAvg, bit for bit.

    Evaluation scales nothing.
    """

    guide = Guide(
        data="classes missing at clients",
        sent="all weights",
        won="few classes per client: above FedAvg, FedProx and SCAFFOLD",
    )

    needs_classes: ClassVar[str] = "it scales the logits of absent classes"

    alpha: Share = 0.5
    """Factor of the logit of a class that the client does not have."""
    form: Literal["binary", "graded"] = field("binary", used_if={"alpha": other_than(1)})
    """Scale only the logits of classes that the client does not have, or also those of rare ones,
    by their number of examples.
    """

    def calibration(self, counts: np.ndarray) -> Tensor:
        return scale(counts, self.alpha, self.form)

    def calibrate(self, logits: Tensor, calibration: Tensor) -> Tensor:
        return logits * calibration


def scale(counts: np.ndarray, alpha: float, form: Literal["binary", "graded"]) -> Tensor:
    """Return the factors of the logits, [C].

    counts: examples of each class that the client has, [C].
    """
    n = torch.from_numpy(counts).float()
    share = (n > 0).float() if form == "binary" else n / n.max().clamp(min=1)
    return alpha + (1 - alpha) * share
