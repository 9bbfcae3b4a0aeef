"""Ditto: FedAvg, with a personal model beside it on each client that stays near the global one.

Li et al. (Fair and Robust Federated Learning Through Personalization), ICML 2021, arXiv:2012.04221,
algorithm 1.

Objective: F_k(w); F_k(v) + lam / 2 ||v - w_t||^2
Server: w <- sum_k p_k w_k
Round:
1. The server sends the global model w_t to the cohort.
2. Each client trains it for the server, as in FedAvg.
3. Then it trains its own model v, near w_t.
4. It sends the former and keeps v, with which it is evaluated.
5. The server takes the weighted mean.

Deviations: the two trainings follow one another, each with its own order of examples; the authors'
code alternates their steps on the same batches. A client's personal model starts as the server's
first model.
"""

from functools import partial
from typing import Any, ClassVar

from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Model, Params, RoundBased, Upload, sgd
from hpcfed.training.losses import proximal


class Ditto(RoundBased):
    """The global model is that of FedAvg, bit for bit.

    With lam = 0 each personal model is trained alone.
    """

    guide = Guide(
        data="different labels; clients that attack",
        sent="all weights",
        won="accuracy, fairness and robustness at once",
    )

    keeps_weights: ClassVar[bool | None] = True

    lam: NonNegativeFloat = 1.0
    """Weight of the distance between personal and global model; the paper picks from 0.1, 1, 2."""
    personal_epochs: PositiveInt | None = None
    """Epochs of the personal model; none: as many as the job's local training has."""

    @property
    def alone(self) -> dict[str, Any]:
        epochs = self.personal_epochs
        return super().alone | ({"local.epochs": epochs, "local.steps": None} if epochs else {})

    def personal_loss(
        self, client: Client, state: Params, model: Model, x: Any, y: Tensor
    ) -> Tensor:
        """Return the objective of the personal model on one batch."""
        return self.loss(client, state, model, x, y) + proximal(model, state, self.lam)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        if "begun" not in client.memory:
            client.load(fed.initial())
            client.memory["begun"] = 1
        personal = client.skeleton.flat.clone()
        download = fed.down(client, state)
        self.receive(client, download)
        self.train(fed, client, download, t)
        sent = client.params(self.shared)
        client.skeleton.load(personal)
        sgd(
            fed,
            client,
            t,
            partial(self.personal_loss, client, download),
            epochs=self.personal_epochs,
            phase="personal",
        )
        return Upload(Mean.of(sent, self.weight(client)), relative_to=download)
