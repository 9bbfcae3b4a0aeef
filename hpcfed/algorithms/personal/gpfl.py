"""GPFL: common embeddings of the classes guide the features that are global, and personal ones.

Zhang et al. (GPFL: Simultaneously Learning Global and Personalized Feature Information for
Personalized Federated Learning), ICCV 2023, arXiv:2308.10279, algorithm 1. b is the body with
representations z = b(x), h_k the client's head, T_c the embedding of class c, [d]. The conditional
valve V(z, c) = ReLU((gamma(c) + 1) z + beta(c)) has gamma and beta of the form LayerNorm(ReLU(W c +
e)). The personal condition is q_k = sum_c n_(k,c) / n_k T_c, the global one g = mean_c T_c, both of
the embeddings S that the client received. The logits of the second term are cosines.

Objective: CE(h_k(V(z, q_k)), y) + CE(cos(V(z, g), T_c), y) + lam ||V(z, g) - S_y||
    + mu / 2 (||T||^2 + ||V||^2)
Server: (b, T, V) <- sum_k p_k (b_k, T_k, V_k)
Round:
1. The server sends body b, embeddings T and valve V to the cohort.
2. Each client computes both conditions of the received embeddings.
3. It trains b, T, V and its own head h_k.
4. It sends b_k, T_k and V_k; the head stays.
5. The server takes the weighted mean. A client predicts by h_k(V(z, q_k)).

Deviations: the third term is the mean over examples of the Euclidean distance; the authors' code
takes the norm of the differences of a batch as one matrix, which grows with the root of the batch.
There the conditions of a round are those of the client's embeddings of its last round, and 0 in its
first.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed import Client, Guide, Model, Params, RoundBased
from hpcfed.models.model import Extended
from hpcfed.models.variants import name_variant
from hpcfed.training.losses import cosines


class GPFL(RoundBased):
    """With the identity as valve, and without the terms of the embeddings, it is FedPer."""

    guide = Guide(
        data="different labels",
        sent="the body, and embeddings of the classes with their valve",
        won="images, texts and sensors with Dirichlet labels or few classes: above FedRep, Ditto, "
        "FedRoD",
    )

    reads_head: ClassVar[bool] = True
    needs_classes: ClassVar[str] = "it embeds the classes"
    trains_parts: ClassVar[Any] = False
    variants: ClassVar[tuple[str, ...]] = (name_variant("valve"),)

    lam: NonNegativeFloat = 0.01
    """Weight of the distance of global features to the received embedding of their class."""
    mu: NonNegativeFloat = 0.1
    """Weight decay of the embeddings and the valve."""

    def shared(self, name: str) -> bool:
        return name.startswith(("body.", "valve."))

    def receive(self, client: Client, state: Params) -> None:
        embeddings = state["valve.embeddings"]
        counts = np.bincount(client.train.labels, minlength=len(embeddings))
        shares = torch.from_numpy(counts / counts.sum()).to(embeddings)
        client.load({**state, "condition": shares @ embeddings})

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Tensor) -> Tensor:
        z, received = model.body(x), state["valve.embeddings"]
        value = client.task.loss(model.head(model.valve(z, model.condition)), y)
        features = model.valve(z, received.mean(0))
        value = value + client.task.loss(cosines(features, model.valve.embeddings), y)
        if self.lam:
            apart = torch.linalg.vector_norm(features - received[y], dim=1)
            value = value + self.lam * apart.mean()
        if self.mu:
            squares = sum(w.square().sum() for w in model.valve.parameters())
            value = value + 0.5 * self.mu * squares
        return value


class Valve(nn.Module):
    """Embeddings of the classes, [C, d], and the valve that a condition opens, [n, d] -> [n, d]."""

    def __init__(self, classes: int, d: int):
        super().__init__()
        self.embeddings = nn.Parameter(nn.init.normal_(torch.empty(classes, d)))
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.LayerNorm(d)) for _ in range(2)
        )

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        return F.relu((self.gamma(condition) + 1) * z + self.beta(condition))


class Valved(Extended):
    """A model with a valve between body and head, and a client's condition, [d], which it keeps."""

    condition: Tensor

    def __init__(self, model: Model):
        super().__init__(model)
        d = model.head.in_features
        self.valve = Valve(model.head.out_features, d)
        self.register_buffer("condition", torch.zeros(d))

    def forward(self, x: Any) -> Tensor:
        return self.head(self.valve(self.body(x), self.condition))


def add_valve(model: Model) -> Valved:
    """Return the model with a "valve" and a "condition"."""
    return Valved(model)
