"""WAFFLe: weights are products of factors shared by all clients and of scores of each client.

Each client uses only a few of the factors.

Hao et al. (WAFFLe: Weight Anonymized Factorization for Federated Learning), 2020, arXiv:2008.05687
(not WAFFLE, Beaussart et al., 2021, arXiv:2110.06978).

Scores are r_k (real) and b_k (binary). b_k has the prior of an Indian buffet process, in its
stick-breaking form: pi_f is the product of v_1 ... v_f with v ~ Beta(alpha, 1). KL_sticks and KL_b
are the divergences of the sticks' Kumaraswamy posterior and of b's Bernoulli posterior from their
priors, summed over layers. Prediction takes the factors whose posterior is above 1/2.

Rests on the abstract; the rest is recalled, and no code is public. The number of factors (120), the
prior and the temperature are this project's.

Objective: F_k + kl / n_k (KL_sticks + KL_b)
Server: W_a <- sum_k p_k W_ak; W_b <- sum_k p_k W_bk
Round:
1. The server sends the factors W_a and W_b of each layer.
2. A client's weight is W_a diag(b_k r_k) W_b, with scores of its own.
3. It trains factors and scores, with relaxed draws of b and one draw of the sticks in each step.
4. It sends the factors; r_k and the posteriors of b_k and of the sticks stay.
5. The server averages W_a and W_b, each by itself.

Deviations: r_k is a point, without prior. Biases and batch normalisation are shared as in FedAvg.
Convolutions are factorised as matrices [out, in * height * width].
"""

from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Upload
from hpcfed.algorithms.personal.factors import SCORES, divergence
from hpcfed.config.conditions import field
from hpcfed.models.variants import name_variant


class WAFFLe(RoundBased):
    """With personal = false clients have no scores.

    WAFFLe is then FedAvg of the factors, bit for bit.
    """

    guide = Guide(
        data="clusters of labels",
        sent="factors of weights, and their scores",
        won="MNIST and Fashion-MNIST with groups of classes",
    )

    factors: PositiveInt = 120
    """F, factors of each layer."""
    alpha: PositiveFloat = field(4.0, used_if="kl")
    """Parameter of the prior, Beta(alpha, 1) per stick: the larger, the more factors are likely."""
    kl: NonNegativeFloat = field(1.0, used_if="personal")
    """Weight of the divergence from the prior; 0: all factors cost nothing."""
    temperature: PositiveFloat = field(0.67, used_if="personal")
    """Temperature of the relaxed draws of b: the smaller, the nearer to 0 and 1."""
    personal: bool = True
    """Clients learn scores; otherwise all scores are 1."""

    @property
    def variants(self) -> Any:
        return (name_variant("factors", self.factors, self.alpha, self.temperature, self.personal),)

    def shared(self, name: str) -> bool:
        return name.rpartition(".")[2] not in SCORES

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Tensor) -> Tensor:
        value = super().loss(client, state, model, x, y)
        if not self.personal or not self.kl:
            return value
        return value + self.kl * state["share"] * divergence(model)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        share = Params(share=torch.tensor(1 / client.n, device=fed.device))
        self.train(fed, client, share, t)
        sent = Mean.of(client.params(self.shared), self.weight(client))
        return Upload(sent, relative_to=download)
