"""FedORGP: the server trains global prototypes that are orthogonal to each other.

Guo et al., 2025, arXiv:2502.16119. A network at the server makes the prototype p_c of each class c,
as in FedTGP. It learns that the clients' class means q_kc have the direction of their class's
prototype and are orthogonal to those of the other classes i; n is the number of these means.

Objective: CE + lam (1 - cos(z, p_y))
Server: p <- argmin_p intra + gamma inter; intra = sum_k sum_c (1 - cos(q_kc, p_c)) / n;
inter = sum_k sum_c sum_i |cos(q_kc, p_i)| / (n (C - 1))
Round:
1. The server sends the prototypes p of all classes.
2. Each client trains; its representations z take the direction of the prototypes of their classes.
3. It sends its mean representation q_kc of each class c that it has.
4. The server trains the network that makes the prototypes on all pairs of mean and class.

Deviations: a class whose examples no client has sent yet has no prototype for clients. The text of
the paper was not at hand; the losses are those of the authors' code at its commit aaaf664. Later
commits weigh the terms by similarity and leave out examples far from their class, which the paper
does not mention; neither is followed. The weight of intra in that code is 1 in all experiments.
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from hpcfed import Guide
from hpcfed.algorithms.common_head.generated import PROTOTYPES_USED, GeneratedPrototypes
from hpcfed.config.conditions import field


class FedORGP(GeneratedPrototypes):
    """With lam = 0 FedORGP is local training, bit for bit."""

    guide: ClassVar[Guide] = Guide(
        data="different labels",
        sent="class means",
        won="above FedProto and FedTGP with several architectures",
    )

    inference: Literal["prototype", "head"] = "head"
    """Predict the class of the nearest prototype, or with the client's own head."""
    gamma: NonNegativeFloat = field(10.0, used_if="server_epochs")
    """Weight of the similarity to the prototypes of other classes."""
    server_epochs: NonNegativeInt = field(1, used_if=PROTOTYPES_USED)
    """Passes of the server over the class means of a round; 0: the prototypes stay as they start.
    """
    server_batch: PositiveInt = field(32, used_if="server_epochs")
    """Class means in one step of the server."""

    def to_prototypes(self, z: Tensor, proto: Tensor) -> Tensor:
        valid = ~proto.isnan().any(1)
        apart = 1 - F.cosine_similarity(z, proto.nan_to_num())
        return torch.where(valid, apart, 0.0).mean()

    def server_loss(self, z: Tensor, y: Tensor, proto: Tensor, margin: float) -> Tensor:
        similar = F.cosine_similarity(z[:, None], proto, dim=2)  # [n, C]
        right = F.one_hot(y, len(proto)).bool()
        intra = (1 - similar[right]).mean()
        return intra + self.gamma * similar[~right].abs().mean() if len(proto) > 1 else intra
