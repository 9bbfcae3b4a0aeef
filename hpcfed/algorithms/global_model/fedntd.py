"""FedNTD: clients keep what the received model says about all classes but the true one.

Lee et al. (Preservation of the Global Knowledge by Not-True Distillation in Federated Learning),
NeurIPS 2022, arXiv:2106.03097, section 4. q_k is the softmax at temperature tau of a client's
logits without that of the true class, q that of the received model.

Objective: CE + beta tau^2 KL(q || q_k)
Server: w <- sum_k p_k w_k
Round:
1. The server sends its model to the cohort.
2. A client computes its examples' logits by this model.
3. It trains: its scores of the other classes than the true one stay near those of that model.
4. It sends its model.
5. The server takes the weighted mean of the models.

Deviations: the received model's logits are computed once, in eval mode, from the examples without
augmentation. In the authors' code that model computes them for each batch, in the mode in which it
happens to be.
"""

from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Model, Paired, Params, RoundBased, Upload
from hpcfed.config.conditions import field
from hpcfed.training.infer import logits
from hpcfed.training.losses import distil, soften


class FedNTD(RoundBased):
    """FedAvg with not-true distillation; beta = 0 is FedAvg, bit for bit, as are two classes."""

    guide = Guide(
        data="different labels",
        sent="all weights",
        won="images with few classes per client: above FedProx, SCAFFOLD, MOON, FedNova",
    )

    needs_classes: ClassVar[str] = "it distils the scores of all classes but the true one"

    beta: NonNegativeFloat = 1.0
    """Weight of the distillation."""
    tau: PositiveFloat = field(1.0, used_if="beta")
    """Temperature of the distillation."""

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Any) -> Tensor:
        if isinstance(y, Tensor):
            return super().loss(client, state, model, x, y)
        (labels, received), output = y, model(x)
        term = not_true_distillation(received, output, labels, self.tau)
        return client.task.loss(output, labels) + self.beta * term

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        data = None
        if self.beta:
            data = Paired(client.train, logits(fed, client, client.train), with_labels=True)
        self.train(fed, client, download, t, data=data)
        sent = Mean.of(client.params(self.shared), self.weight(client))
        return Upload(sent, relative_to=download)


def not_true_distillation(received: Tensor, output: Tensor, y: Tensor, tau: float) -> Tensor:
    """Return tau^2 KL(q || q_k) over all classes but the true one, the mean over examples.

    received, output: logits [n, C] of the received model and of the client's.  y: [n], labels.
    """
    teacher, student = without_true(received, y), without_true(output, y)
    return distil(soften(teacher, tau), student, tau)


def without_true(output: Tensor, y: Tensor) -> Tensor:
    """Return the logits without those of the true classes, [n, C - 1]."""
    columns = torch.arange(output.shape[1] - 1, device=output.device)
    return output.gather(1, columns + (columns >= y[:, None]))
