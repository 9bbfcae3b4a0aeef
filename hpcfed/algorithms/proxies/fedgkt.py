"""FedGKT: small clients send the features of all their examples to a large server model; both learn
from each other.

He et al., NeurIPS 2020, arXiv:2007.14513, algorithm 1, eqs. 5-8. Labels and feature maps leave the
clients, weights never do. Rank 0 holds the features of a whole cohort: n |H| values. Deviations:
all clients have one architecture (the paper: any with features of one shape); the server learns
from the clients of the round's cohort; examples are told apart by their places in the client's
data, not by batches that must not be shuffled, as in the authors' code. The server's logits that
clients learn from are those of its model after its training, in eval mode; the authors' code keeps
those that its last epoch computes in train mode, while the model still changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed.algorithms.base import RoundBased, single_step
from hpcfed.algorithms.proxies import split
from hpcfed.core.params import Params
from hpcfed.training.local import sgd
from hpcfed.training.losses import distil, soften

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation
    from hpcfed.models.model import Model


class FedGKT(RoundBased):
    """The client's loss is CE + alpha KL, the server's KL + alpha CE."""

    needs: ClassVar[tuple[str, ...]] = ("server",)

    alpha: NonNegativeFloat = 0.5
    """Weight of the server's predictions in the clients' loss, and of the labels in the
    server's.
    """
    tau: PositiveFloat = 3.0
    """Temperature of both divergences, which are multiplied by its square."""
    server_epochs: NonNegativeInt = 2
    """Passes of the server over the features of a round."""
    server_lr: PositiveFloat = 1e-3
    """Learning rate of the server."""
    server_batch: PositiveInt = 100
    """Examples in one step of the server."""
    server_optimiser: Literal["adam", "sgd"] = "adam"
    """Optimiser of the server."""
    evaluate: Literal["server", "client"] = "server"
    """A client predicts with the server's model on its own features, or with its own small
    classifier.
    """

    def refuses(self, job: Job) -> dict[str, str]:
        found = super().refuses(job) | single_step(job)
        found["algorithm.weighting"] = "nothing is averaged over clients"
        if not self.server_epochs:
            names = ("server_lr", "server_batch", "server_optimiser")
            found |= {f"algorithm.{name}": "server_epochs = 0: it is not trained" for name in names}
        return found | split.refusal(job)

    def shared(self, name: str) -> bool:
        return False

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        n, features = fed.sizes[k], split.shape(fed)
        return n * fed.classes * 4, n * (features.numel() + fed.classes + 1) * 4

    def init(self, fed: Federation) -> Params:
        return fed.initial(architecture=fed.job.models.server, shape=split.shape(fed))

    def receive(self, client: Client, state: Params) -> None:
        pass

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Any) -> Tensor:
        if client.memory.get("server") is None:
            return super().loss(client, state, model, x, y)
        (labels, server), logits = y, model(x)
        return F.cross_entropy(logits, labels) + self.alpha * distil(
            soften(server, self.tau), logits, self.tau
        )

    def predictor(self, fed: Federation, client: Client, state: Params) -> Callable[[Any], Tensor]:
        if self.evaluate == "client":
            return client.model
        return partial(split.predict, fed, client, state)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> dict[str, Tensor]:
        sgd(
            fed,
            client,
            t,
            partial(self.loss, client, state),
            data=split.distillation_data(client, "server"),
        )
        return fed.up(client, split.features(fed, client))

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        sent = fed.at_root(fed.run(cohort, lambda client: self.local(fed, client, state, t)))
        how: dict[str, Any] = {
            "epochs": self.server_epochs,
            "size": self.server_batch,
            "optimiser": self.server_optimiser,
        }
        server = fed.on_root(
            lambda: split.learn(fed, state, sent, self.server_loss, t, lr=self.server_lr, **how)
        )
        answers = fed.from_root(
            {k: split.answers(fed, server, parcel) for k, parcel in sent.items()}
        )
        for client in fed.mine(cohort):
            client.memory["server"] = fed.down(client, answers[client.id])
        return server

    def server_loss(self, out: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """The server's objective on one batch: its logits, those of the clients, and the labels."""
        return distil(soften(logits, self.tau), out, self.tau) + self.alpha * F.cross_entropy(
            out, labels
        )
