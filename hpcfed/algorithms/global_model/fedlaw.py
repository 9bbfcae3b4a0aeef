"""FedLAW: the server learns the weights of the clients' models, and their sum, on labelled data.

Li et al. (Revisiting Weighted Aggregation in Federated Learning with Neural Networks), ICML 2023,
arXiv:2302.10911, eq. 5. CE is the cross-entropy of the public data. A sum gamma below 1
shrinks the global weights.

Objective: F_k(w)
Server: w <- gamma sum_k lam_k w_k; gamma = e^b; lam = softmax(a); a, b <- argmin_(a,b) CE(gamma
    sum_k lam_k w_k)
Round:
1. The server sends its model to the cohort.
2. Each client trains it and sends it.
3. From gamma = 1 and the clients' shares of the examples, the server learns b and a by Adam on
   public examples with labels.
4. It takes the sum of the models with these weights.

Deviations: running statistics of batch normalisation are computed anew, on the public data, if the
server learns; in the authors' code they follow its passes over these data. It has no second variant
with averaged lambda (SWA) and with squares instead of exponentials.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Federation, Guide, Params, RoundBased, field
from hpcfed.algorithms.base import check_public_labels
from hpcfed.algorithms.clusters.clusters import stack
from hpcfed.training.server import fit, forward, parameters, recalibrate


class FedLAW(RoundBased):
    """With server_epochs = 0 it is FedAvg, bit for bit."""

    guide = Guide(
        data="different labels; public data with labels",
        sent="all weights",
        won="above FedAvg, FedDF, FedBE on images, with 200 labelled examples at the server",
    )

    needs: ClassVar[tuple[str, ...]] = ("public",)
    needs_classes: ClassVar[str] = "its server learns the classes of public data"

    server_epochs: NonNegativeInt = 100
    """Passes over the public data in which the server learns the weights."""
    server_lr: PositiveFloat = field(0.01, used_if="server_epochs")
    """Learning rate of Adam for a and b."""
    halve_epochs: NonNegativeInt = field(20, used_if="server_epochs")
    """Passes after which this rate is halved, again and again; 0: it stays."""
    server_batch: PositiveInt = field(128, used_if="server_epochs")
    """Public examples in one step."""

    def init(self, fed: Federation) -> Params:
        if self.server_epochs:
            check_public_labels(fed, "set algorithm.server_epochs = 0")
        return super().init(fed)

    def aggregate(self, fed: Federation, state: Params, uploads: list[tuple[int, Any]]) -> Params:
        """Return the sum of the models with the weights that the server learns."""
        if not self.server_epochs:
            return super().aggregate(fed, state, uploads)
        models = fed.at_root({k: sent.terms[0].value for k, sent in uploads})
        weights = ((k, sent.terms[0].weight) for k, sent in uploads)
        claimed = fed.gather({k: torch.tensor([w], device=fed.device) for k, w in weights})
        return fed.on_root(lambda: self.learn(fed, models, claimed) if models else state)

    def learn(
        self, fed: Federation, models: Mapping[int, Params], claimed: Mapping[int, Tensor]
    ) -> Params:
        """Return the combination of the clients' models with the least loss on public data.

        claimed: the clients' weights in the mean with which it begins.
        """
        module = fed.module(fed.architectures[0])
        is_trained = parameters(module)
        stacked = stack(models.values())
        shares = torch.tensor([float(claimed[k]) for k in models], device=fed.device)
        start = Params(a=(shares / shares.sum()).log(), b=torch.zeros((), device=fed.device))

        def batch(rows: np.ndarray) -> tuple[Any, Tensor]:
            x, y = fed.public.batch(rows)
            return fed.prepare(x), y

        def loss(weights: Params, part: tuple[Any, Tensor]) -> Tensor:
            x, y = part
            combined = combine(stacked, weights, is_trained)
            return F.cross_entropy(forward(fed, module, combined, x), y)

        module.model.train()
        steps_per_epoch = -(-len(fed.public) // self.server_batch)
        weights = fit(
            fed,
            start,
            loss,
            batch,
            len(fed.public),
            "weights",
            fed.t,
            epochs=self.server_epochs,
            size=self.server_batch,
            lr=self.server_lr,
            optimiser="adam",
            betas=(0.5, 0.999),
            halve_every=self.halve_epochs * steps_per_epoch,
        )
        model = combine(stacked, weights, is_trained).clone()
        return recalibrate(fed, fed.architectures[0], model, fed.public)


def combine(stacked: Params, weights: Params, is_trained: Callable[[str], bool]) -> Params:
    """Return gamma sum_k lambda_k w_k of models [m, *shape]; of buffers sum_k lambda_k w_k.

    weights: a, [m], and b, a scalar; lambda = softmax(a), gamma = e^b.
    """
    lam, gamma = weights["a"].softmax(0), weights["b"].exp()

    def total(value: Tensor) -> Tensor:
        return torch.tensordot(lam, value, dims=1)

    return Params(
        {n: gamma * total(v) if is_trained(n) else total(v).detach() for n, v in stacked.items()}
    )
