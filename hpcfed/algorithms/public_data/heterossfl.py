"""Hetero-SSFL: clients with different models learn without labels, by similar representations.

Each client learns from two views of its examples. Its representations of common examples are drawn
to the mean of all clients.

Makhija et al. (Federated Self-supervised Learning for Heterogeneous Clients), 2022,
arXiv:2205.12493: FedHeNN without labels.

G_k = Z_k Z_k^T is the linear kernel of client k's representations of unlabelled examples that all
clients have (RAD). Weights are not exchanged. SSL is SimSiam's (Chen and He, CVPR 2021,
arXiv:2011.10566, eq. 2): 1 - cos(h(z_1), z_2) / 2 - cos(h(z_2), z_1) / 2 with a predictor h of each
client, and no gradient through the second arguments. For evaluation each client fits its head to
its labels after each round, on representations of the trained body, which never sees a label. The
recorded training loss is that of the body alone.

Rests on the abstract and on one file of a third-party port: no code of the authors is public. The
values of mu and of the number of examples are this project's.

Objective: SSL_k(w_k) + mu (1 - CKA(G_k, G))
Server: G = mean_k G_k
Round:
1. Each client of the cohort sends the kernel of its representations of common examples.
2. The server sends the mean kernel G, which is constant in this round.
3. Each client trains on two views of its examples, with its kernel near G.
4. It fits its head to its labels; the body sees none.

Deviations: z is the representation, without a projection network. The predictor has no batch
normalisation. Kernels have length 1 before they are averaged, so that none outweighs the others.
"""

from functools import partial
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from hpcfed import Client, Federation, Guide, Model, Paired, Params, RoundBased, Shard, sgd
from hpcfed.algorithms.base import OWN_LOSS
from hpcfed.algorithms.public_data.alignment import add_alignment
from hpcfed.algorithms.public_data.kernels import mean_of_uploads, send_kernel
from hpcfed.config.conditions import Unused, field
from hpcfed.models.model import in_head
from hpcfed.models.variants import name_variant
from hpcfed.training import similarity
from hpcfed.training.infer import represent
from hpcfed.training.local import Loss


class HeteroSSFL(RoundBased):
    """With mu = 0 each client trains alone by self-supervision, bit for bit."""

    guide = Guide(
        data="examples without labels",
        sent="kernels of public examples",
        won="above training alone without labels",
    )

    needs_classes: ClassVar[str] = "it contrasts classes"
    reads_head: ClassVar[bool] = True
    accepts: ClassVar[str] = "any models"
    needs: ClassVar[tuple[str, ...]] = ("public",)
    views: ClassVar[int] = 2
    keeps_weights: ClassVar[bool | None] = True
    variants: ClassVar[tuple[str, ...]] = (name_variant("predictor"),)
    kernel: ClassVar[str] = "linear"  # as `Kernel` requires
    bandwidth: ClassVar[float] = 1.0
    unused: ClassVar[Unused] = {
        **OWN_LOSS,
        "weighting": "models are not averaged, and kernels have equal weights",
    }

    mu: NonNegativeFloat = 1.0
    """Weight of the distance to the mean kernel; 0: clients train alone."""
    rad_size: PositiveInt = field(1000, used_if="mu")
    """Public examples drawn each round; all if there are fewer."""
    kernel_norm: Literal["frobenius", "none"] = field("frobenius", used_if="mu")
    """Average kernels each at length 1, so that none outweighs the others, or as they are."""
    upload: Literal["kernel", "representations"] = field("kernel", used_if="mu")
    """Clients send half of a kernel, or the representations, from which the server computes it."""
    probe_epochs: PositiveInt = 1
    """Epochs in which a client fits its head to its labels after its training of a round."""

    def shared(self, name: str) -> bool:
        return False

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Any) -> Tensor:
        one, two = (model.body(view) for view in x)
        return 1 - 0.5 * (likeness(model.predictor(one), two) + likeness(model.predictor(two), one))

    def mean_kernel(self, fed: Federation, rad: Shard, cohort: list[int]) -> Tensor:
        """Return the mean of the cohort's kernels, normalised as a target, [L, L]; collective."""
        uploads = fed.stream(cohort, lambda client: send_kernel(fed, client, rad, self))
        return similarity.normalise_kernel(mean_of_uploads(fed, uploads, len(rad), self))

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        rad = mean = None
        if self.mu:
            rad = fed.public.pick(fed.draw_public(t, self.rad_size))
            mean = self.mean_kernel(fed, rad, cohort)
        fed.run(cohort, lambda client: self.learn(fed, client, state, t, rad, mean))
        return state

    def learn(
        self,
        fed: Federation,
        client: Client,
        state: Params,
        t: int,
        rad: Shard | None,
        mean: Tensor | None,
    ) -> None:
        """Train one client without labels, and then its head."""
        loss: Loss = partial(self.loss, client, state)
        if rad is not None and mean is not None:
            target = fed.down(client, mean)
            distance = lambda z: 1 - similarity.cka_to_kernel(z, target)  # noqa: E731
            loss = add_alignment(fed, client, loss, rad, distance, self.mu)
        sgd(fed, client, t, loss, views=self.views)
        z = represent(fed, client, client.train)
        sgd(
            fed,
            client,
            t,
            fit_head,
            data=Paired(client.train, z, with_labels=True),
            only=in_head,
            epochs=self.probe_epochs,
            phase="probe",
            counted=False,
        )


def likeness(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean cosine of the rows of two [n, d]; the second is a constant."""
    return F.cosine_similarity(prediction, target.detach()).mean()


def fit_head(model: Any, x: Any, y: Any) -> Tensor:
    """Return the cross-entropy of the head alone; y: labels and representations."""
    labels, z = y
    return F.cross_entropy(model.head(z), labels)


def add_predictor(model: Model) -> Model:
    """Add a predictor beside body and head, [n, d] -> [n, d], and return the model.

    Only losses use it. It has two linear layers, the hidden one with d / 4 units.
    Chen and He (SimSiam), CVPR 2021, arXiv:2011.10566, section 3.
    """
    d = model.head.in_features
    hidden = max(1, d // 4)
    model.predictor = nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, d))
    return model
