"""FedTGP: the server trains global prototypes that lie apart from each other by a margin.

Zhang et al., AAAI 2024, arXiv:2401.03230, algorithm 1, eqs. 6-10. A network at the server makes the
prototype p_c of each class c; it learns by contrast with the clients' class means q_kc. P_kc is the
softmax share of class c at q_kc by Euclidean distances, after the margin delta is added to that of
class c; its sum is over the other classes i. q_c is the plain mean of q_kc over clients.

Objective: CE + lam ||z - p_y||^2 / d
Server: p <- argmin_p -sum_k sum_c log P_kc;
P_kc = e^(-||q_kc - p_c|| - delta) / (e^(-||q_kc - p_c|| - delta) + sum_i e^(-||q_kc - p_i||));
delta = min(max_(c,i) ||q_c - q_i||, tau)
Round:
1. The server sends the prototypes p of all classes.
2. Each client trains; its representations z approach the prototypes of their classes.
3. It sends its mean representation q_kc of each class c that it has.
4. The server sets the margin delta to the largest distance of two classes' means, at most tau.
5. It trains the network that makes the prototypes on all pairs of mean and class.

Deviations: a class whose examples no client has sent yet has no prototype for clients. The authors'
code (preset authors) takes as the margin the largest distance of a class to its nearest one, and
computes the class means of a round with the model before its local training, because it loads the
saved model. Its distance is sqrt(a - 2ab + b), whose gradient is nan at distance 0; here it is 0
there. With one class in the round the margin is tau.
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Upload
from hpcfed.algorithms.common_head.class_means import class_means
from hpcfed.algorithms.common_head.generated import PROTOTYPES_USED, GeneratedPrototypes, State
from hpcfed.config.conditions import field
from hpcfed.training import losses
from hpcfed.training.infer import class_sums


class FedTGP(GeneratedPrototypes):
    """With lam = 0 and inference = "head" FedTGP is local training, bit for bit."""

    guide: ClassVar[Guide] = Guide(
        data="different labels",
        sent="class means",
        won="above FedProto with up to eight architectures",
    )

    tau: NonNegativeFloat = field(100.0, used_if="server_epochs")
    """Largest margin between prototypes."""
    gap: Literal["largest", "nearest"] = field("largest", used_if="tau")
    """Margin below tau: the largest distance of two classes' means, or the largest distance of a
    class to its nearest one.
    """
    prototypes: Literal["after", "before"] = field("after", used_if=PROTOTYPES_USED)
    """Class means are those of the client's model after its local training, or before it."""

    def to_prototypes(self, z: Tensor, proto: Tensor) -> Tensor:
        return losses.to_prototypes(z, proto)

    def margin(self, z: Tensor, y: Tensor) -> float:
        """Return delta, from all class means, [n, d], and their classes, [n]."""
        classes = y.unique()
        if len(classes) == 1:
            return self.tau
        sums, counts = class_sums(z, y.cpu().numpy(), int(classes.max()) + 1)
        means = sums[classes] / counts[classes, None]
        apart = distances(means, means)
        if self.gap == "nearest":
            apart.fill_diagonal_(torch.inf)
            apart = apart.amin(1)
        return min(float(apart.max()), self.tau)

    def server_loss(self, z: Tensor, y: Tensor, proto: Tensor, margin: float) -> Tensor:
        apart = distances(z, proto) + margin * F.one_hot(y, len(proto))
        return F.cross_entropy(-apart, y)

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        if self.prototypes == "after":
            return super().local(fed, client, state, t)
        means = class_means(fed, client)
        super().local(fed, client, state, t)
        return means


def distances(z: Tensor, proto: Tensor) -> Tensor:
    """Return the Euclidean distances, [n, C], whose gradient at 0 is 0.

    z: [n, d].  proto: [C, d].
    """
    return torch.linalg.vector_norm(z[:, None] - proto, dim=2)
