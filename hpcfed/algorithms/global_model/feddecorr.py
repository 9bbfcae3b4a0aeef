"""FedDecorr: a loss decorrelates the components of representations, so that they do not collapse.

Shi et al. (Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated
Learning), ICLR 2023, arXiv:2210.00226, eq. 6. K is the correlation matrix, d x d, of a batch's
representations.

Objective: CE + beta / d^2 ||K||^2
Server: w <- sum_k p_k w_k
Round:
1. The server sends its model to the cohort.
2. Each client trains it; the loss pulls the correlations of the components of its representations
   to 0.
3. It sends its model.
4. The server takes the weighted mean of the models.

Deviations: the default beta = 0.1 is of the authors' code, whose term (scale = "code") is the mean
squared correlation of different components, times (B - 1)^2 / B for batches of B examples; the
equation above is scale = "paper". A batch of one example has no correlations and adds nothing.
"""

from typing import Any, ClassVar, Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from hpcfed import Client, Guide, Model, Params
from hpcfed.algorithms.base import Averaging
from hpcfed.config.conditions import field
from hpcfed.training.losses import decorrelation


class FedDecorr(Averaging):
    """FedAvg with a loss of decorrelation; beta = 0 is FedAvg, bit for bit."""

    guide = Guide(
        data="different labels",
        sent="all weights",
        won="images with Dirichlet labels: added to FedAvg, FedAvgM, FedProx and MOON, above each",
    )

    reads_head: ClassVar[bool] = True

    beta: NonNegativeFloat = 0.1
    """Weight of the loss of decorrelation."""
    scale: Literal["code", "paper"] = field("code", used_if="beta")
    """Scale of that loss: as in the authors' code, larger by about the batch size; or eq. 6."""

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        if not self.beta:
            return super().loss(client, state, model, x, y)
        z = model.body(x)
        return client.task.loss(model.head(z), y) + self.beta * decorrelation(z, self.scale)
