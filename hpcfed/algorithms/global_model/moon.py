"""MOON: a contrastive loss keeps a client's representations close to those of the global model.

Li et al. (Model-Contrastive Federated Learning), CVPR 2021, arXiv:2103.16257, eq. 3 and algorithm
1. The loss also pushes them away from those of the client's own previous model. s_glob is the
cosine between an example's representation z and that of the received model, s_prev the cosine
between z and that of the client's own model at the end of its last round. Before its first round
the latter is the server's first model.

Objective: CE - mu log(e^(s_glob / tau) / (e^(s_glob / tau) + e^(s_prev / tau)))
Server: w <- sum_k p_k w_k
Round:
1. The server sends its model to the cohort.
2. A client computes its examples' representations by this model and by its previous one.
3. It trains: its own representations approach the former and leave the latter.
4. It keeps its model as its next previous one and sends it.
5. The server takes the weighted mean of the models.

Deviations: z is the representation of models.d values. The paper puts a projection head of 256
before the classifier, as models.d = 256 does here. Both other representations are computed from the
examples without augmentation, in eval mode.
"""

from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Model, Paired, Params, RoundBased, Shard, Upload
from hpcfed.config.conditions import field
from hpcfed.training.infer import represent
from hpcfed.training.losses import model_contrast


class MOON(RoundBased):
    """FedAvg with a model-contrastive loss; mu = 0 is FedAvg, bit for bit.

    A client's previous model is in its memory.
    """

    guide = Guide(
        data="different labels",
        sent="all weights",
        won="CIFAR-10, CIFAR-100, Tiny-ImageNet with Dirichlet labels, above FedProx and SCAFFOLD",
    )

    reads_head: ClassVar[bool] = True

    mu: NonNegativeFloat = 1.0
    """Weight of the model-contrastive loss."""
    tau: PositiveFloat = field(0.5, used_if="mu")
    """Temperature of the model-contrastive loss."""

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Any) -> Tensor:
        if isinstance(y, Tensor):
            return super().loss(client, state, model, x, y)
        (labels, others), z = y, model.body(x)  # others: [b, 2, d], received and previous
        contrast = model_contrast(z, others[:, 0], others[:, 1], self.tau)
        return client.task.loss(model.head(z), labels) + self.mu * contrast

    def data(self, fed: Federation, client: Client) -> Shard:
        """Return the client's examples, with representations of the received and previous model."""
        received = represent(fed, client, client.train)
        with client.borrowed():
            if (previous := client.memory.get("previous")) is None:
                client.load(fed.initial())
            else:
                client.skeleton.load(previous)
            before = represent(fed, client, client.train)
        return Paired(client.train, torch.stack([received, before], 1), with_labels=True)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        data = self.data(fed, client) if self.mu else None
        self.train(fed, client, download, t, data=data)
        if self.mu:
            client.memory["previous"] = client.skeleton.flat.clone()
        sent = Mean.of(client.params(self.shared), self.weight(client))
        return Upload(sent, relative_to=download)
