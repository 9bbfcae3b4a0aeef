"""FedRoD: a common model learns all classes alike, and a head of each client what is its own.

Chen and Chao (On Bridging Generic and Personalized Federated Learning for Image Classification),
ICLR 2022, arXiv:2107.00778, algorithm 1. b is the common body with representations z = b(x), g the
common head, h_k the personal one, n_(k,c) the client's examples of class c. The first objective
trains b and g; the second, of both heads' sum, trains h_k alone.

Objective: CE(softmax(g(z) + gamma log n_(k,c)), y); CE(softmax(g(z) + h_k(z)), y)
Server: (b, g) <- sum_k p_k (b_k, g_k)
Round:
1. The server sends body b and head g to the cohort.
2. Each client trains them by the balanced softmax, which leaves out classes that it does not have.
3. In the same steps it trains its own head h_k by the cross-entropy of both heads.
4. It sends b_k and g_k; h_k stays.
5. The server takes the weighted mean. A client predicts by both heads; g alone is the common model.

Deviations: h_k starts as a copy of the first common head. The paper's second variant, in which a
common hyper-network makes h_k of the client's shares of the classes, is not implemented. The
authors' repository has no code. Of public ports PFLlib steps h_k after b and g on the
representations of before, as here; FL-bench lets the loss of h_k move b, and predicts without g,
which is not followed.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Model, Params
from hpcfed.algorithms.personal.second import WithSecond
from hpcfed.models.personal import WithPersonal
from hpcfed.models.variants import name_variant


class FedRoD(WithSecond):
    """With gamma = 0 the common model is that of FedAvg, bit for bit."""

    guide = Guide(
        data="different labels, rare or missing ones too",
        sent="all weights of the common model",
        won="images with Dirichlet labels: above FedAvg as one model, and above Ditto, FedRep and "
        "Per-FedAvg as personal ones",
    )

    reads_head: ClassVar[bool] = True
    needs_classes: ClassVar[str] = "it balances the classes by their examples"
    variants: ClassVar[tuple[str, ...]] = (name_variant("heads"),)

    gamma: NonNegativeFloat = 1.0
    """Exponent of the classes' numbers of examples in the balanced softmax; 0: cross-entropy."""

    def train(self, fed: Federation, client: Client, received: Params, t: int, **how: Any) -> int:
        prior = log_prior(fed.label_counts[client.id], self.gamma).to(fed.device)
        return super().train(fed, client, Params(prior=prior), t, **how)

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Tensor) -> Tensor:
        z = model.body(x)
        logits = model.head(z)
        both = logits.detach() + model.personal(z.detach())
        return client.task.loss(logits + state["prior"], y) + client.task.loss(both, y)


def log_prior(counts: np.ndarray, gamma: float) -> Tensor:
    """Return gamma log n_c of each class, [C]; -infinity for a class without examples if gamma > 0.

    counts: examples of each class that the client has, [C].
    """
    n = torch.from_numpy(counts).float()
    if not gamma:
        return torch.zeros_like(n)
    return torch.where(n > 0, gamma * n.clamp(min=1).log(), -torch.inf)


class TwoHeads(WithPersonal):
    """A common model and a client's own head, whose logits are added up."""

    def forward(self, x: Any) -> Tensor:
        z = self.body(x)
        return self.head(z) + self.personal(z)


def add_head(model: Model) -> TwoHeads:
    """Return the model with a second head, "personal"."""
    return TwoHeads(model, "head")
