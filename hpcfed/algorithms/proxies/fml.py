"""FML: each client's own model and a small common model learn from each other.

Only the common model is shared.

Shen et al. (Federated Mutual Learning), 2020, arXiv:2006.16765, eqs. 5 and 6. The common model is
the paper's meme model, here models.proxy. s are soft predictions of both.

Objective: alpha CE_own + (1 - alpha) KL(s_common || s_own) + beta CE_common + (1 - beta) KL(s_own
    || s_common)
Server: w <- sum_k p_k w_k
Round:
1. The server sends the common model w to the cohort.
2. Each client trains its own model and the common one, which learn from each other.
3. It sends the common model w_k alone.
4. The server takes the weighted mean of the common models.

Deviations: none. Teachers are constants, and the divergence is a mean over examples of a sum over
classes (one public port divides by the number of classes as well).
"""

from typing import Any, ClassVar

from torch import Tensor

from hpcfed import Client, Guide, Params, Share
from hpcfed.algorithms.proxies.pairs import AveragedProxy
from hpcfed.models.model import Pair
from hpcfed.training.losses import distil, soften


class FML(AveragedProxy):
    """With alpha = beta = 1 the own models are trained locally, and the common one as in FedAvg."""

    guide = Guide(
        data="different labels and tasks",
        sent="the small common model",
        won="above FedAvg and training alone, with different models",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"

    alpha: Share = 0.5
    """Share of cross-entropy in the personal model's loss; the rest is the KL to the common
    model.
    """
    beta: Share = 0.5
    """Share of cross-entropy in the common model's loss; the rest is the KL to the personal
    model.
    """

    def loss(self, client: Client, state: Params, model: Pair, x: Any, y: Tensor) -> Tensor:
        private, proxy = model.own(x), model.proxy(x)
        mutual = (1 - self.alpha) * distil(soften(proxy), private) + (1 - self.beta) * distil(
            soften(private), proxy
        )
        return (
            self.alpha * client.task.loss(private, y)
            + self.beta * client.task.loss(proxy, y)
            + mutual
        )
