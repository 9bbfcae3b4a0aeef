"""FedAMP and HeurFedAMP: each client is drawn to a mixture of models, above all of similar ones.

Huang et al. (Personalized Cross-Silo Federated Learning on Non-IID Data), AAAI 2021,
arXiv:2007.03797, algorithm 1 and section 6. xi_ij is the attention that client i pays to client j.
In FedAMP it falls with the distance of their models, and xi_ii = 1 - sum_(j != i) xi_ij is the
rest. In HeurFedAMP xi_ii is fixed, and the rest is divided by softmax_j(sigma cos(w_i, w_j)).

Objective: F_i(w_i) + lam / (2 alpha) ||w_i - u_i||^2
Server: xi_ij <- alpha / sigma exp(-||w_i - w_j||^2 / sigma); u_i <- sum_j xi_ij w_j
Round:
1. The server has the last model w_j of each client, and mixes them for each of the cohort.
2. It sends client i its mixture u_i.
3. The client trains its own model w_i near u_i.
4. It sends w_i, and predicts with it.

Deviations: where the attention to others sums to more than 1, it is scaled to 1. Clients that have
not sent a model yet are in no mixture, and receive the initial model. Buffers, such as the
statistics of batch normalisation, stay with the client. In PFLlib the penalty has no gradient.
"""

import math
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Model, Params, RoundBased, Share, Upload
from hpcfed.algorithms import received
from hpcfed.algorithms.decentralised.mixing import mix
from hpcfed.config.conditions import SET, Unused, field
from hpcfed.training.losses import proximal

NOTHING = 1e-6  # attention to others that changes no model


class FedAMP(RoundBased):
    """With lam = 0 each client trains alone."""

    guide = Guide(
        data="groups of similar clients",
        sent="all weights",
        won="groups of clients with the same classes: above FedAvg and five personal methods",
    )

    keeps_weights: ClassVar[bool | None] = True
    unused: ClassVar[Unused] = {"weighting": "models are mixed by attention"}

    lam: NonNegativeFloat = 1.0
    """Weight of the squared distance to the mixture, over 2 alpha."""
    attention: Literal["distance", "cosine"] = field("distance", used_if="lam")
    """Attention falls with the squared distance of two models (FedAMP), or grows with their cosine
    (HeurFedAMP).
    """
    alpha: PositiveFloat = field(1.0, used_if="lam")
    """Step of the mixtures: attention to others in proportion, and a weaker pull to the mixture."""
    sigma: PositiveFloat = field(10.0, used_if="lam")
    """Squared distance at which attention has fallen to 1 / e; of cosines the factor."""
    self_weight: Share = field(0.5, used_if={"lam": SET, "attention": "cosine"})
    """HeurFedAMP: part of a client's own model in its mixture."""

    def init(self, fed: Federation) -> Params:
        fed.start_alike()
        return Params(attention=torch.zeros(fed.K, device=fed.device))

    def receive(self, client: Client, state: Params) -> None:
        """Do nothing: clients keep their models."""

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        """Return the mean attention that a client has paid last to all others together."""
        return {"attention_to_others": float(state["attention"].mean())}

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        value = super().loss(client, state, model, x, y)
        return value + proximal(model, state, self.lam / self.alpha) if self.lam else value

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        models = received.models(fed)
        rows = self.weigh(fed, cohort, models)
        mixtures, start = mix(rows, fed.each(models)), fed.initial(fed.trainable)
        uploads = fed.run(
            cohort,
            lambda client: self.local(
                fed, client, mixtures.get(client.id, start).map(Tensor.float), t
            ),
        )
        received.remember(fed, uploads.items())
        return self.note_attention(fed, state, rows)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        mixture = fed.down(client, state)
        self.train(fed, client, mixture, t)
        return Upload(model=client.params(fed.trainable), relative_to={"model": mixture})

    def weigh(
        self, fed: Federation, cohort: list[int], models: dict[int, Params]
    ) -> dict[int, np.ndarray]:
        """Return the attention of this rank's clients of the cohort to all clients; collective.

        models: the last models of this rank's clients.
        """
        compare = square_distance if self.attention == "distance" else cosine
        values = {k: np.full(fed.K, np.nan) for k in cohort if k in models}
        for j, other in fed.each(models):
            for i, row in values.items():
                row[j] = compare(models[i], other)
        return {i: self.attend(row, i) for i, row in values.items()}

    def attend(self, values: np.ndarray, i: int) -> np.ndarray:
        """Return the attention of client i to all clients, [K].

        values: [K], squared distances of its model and theirs, or cosines; nan without a model.
        """
        others = ~np.isnan(values)
        others[i] = False
        row = np.zeros(len(values))
        if self.attention == "distance":
            row[others] = self.alpha / self.sigma * np.exp(-values[others] / self.sigma)
            row /= max(1.0, row.sum())
        elif others.any():
            weights = np.exp(self.sigma * (values[others] - values[others].max()))
            row[others] = (1 - self.self_weight) * weights / weights.sum()
        row[i] = max(0.0, 1 - row.sum())
        return row

    def note_attention(self, fed: Federation, state: Params, rows: dict[int, np.ndarray]) -> Params:
        """Return the new state; warn if no client pays attention to another one; collective."""
        paid = fed.gather({i: 1 - float(row[i]) for i, row in rows.items()})
        if len(paid) > 1 and max(paid.values()) < NOTHING:
            fed.warnings.say(
                "fedamp: no client pays attention to another one, because all "
                f"models are further apart than algorithm.sigma = {self.sigma:g}; set it to their "
                f"usual squared distance"
            )
        attention = state["attention"].clone()
        attention[list(paid)] = torch.tensor(list(paid.values()), device=attention.device)
        return Params(attention=attention)


def square_distance(a: Params, b: Params) -> float:
    """Return ||a - b||^2."""
    return (a - b).dot(a - b)


def cosine(a: Params, b: Params) -> float:
    """Return the cosine of the angle between a and b; 0 for a vector of zeros."""
    return a.dot(b) / (math.sqrt(a.dot(a) * b.dot(b)) or 1.0)
