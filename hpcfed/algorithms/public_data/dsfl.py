"""DS-FL: clients learn from the sharpened mean of their soft predictions of public examples.

Itahara et al., IEEE TMC 2023, arXiv:2008.06180, algorithm 1; entropy reduction aggregation (ERA) is
eq. 12. With models.server the server learns the aggregate too, and its model is evaluated as the
common one.

Objective: F_k(w_k), then CE(f_k(x), q(x))
Server: q(x) = softmax(mean_k softmax(f_k(x)) / tau)
Round:
1. Each client trains on its own examples.
2. It sends its soft predictions of some public examples.
3. The server sharpens their mean (ERA) and sends it.
4. Each client, and the server's model if there is one, learns it by cross-entropy.

Deviations: none.
"""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Paired, Params, RoundBased, Shard, Upload, sgd
from hpcfed.algorithms.base import score_server
from hpcfed.config.conditions import SET, above, field, other_than
from hpcfed.training.infer import logits
from hpcfed.training.losses import soften
from hpcfed.training.server import fit_targets


class DSFL(RoundBased):
    """With distil_epochs = 0 DS-FL is local training, bit for bit."""

    guide = Guide(
        data="different labels; public data",
        sent="scores of public examples",
        won="a fraction of FedAvg's bytes at its accuracy",
    )

    needs_classes: ClassVar[str] = "it averages class probabilities"
    accepts: ClassVar[str] = "any models"
    needs: ClassVar[tuple[str, ...]] = ("public",)
    trains_once: ClassVar[bool] = False
    weighting: Literal["samples", "uniform"] = field("uniform", used_if="distil_epochs")
    """Weight of a client in the mean: 1, or its number of training examples."""
    aggregation: Literal["era", "sa"] = field("era", used_if="distil_epochs")
    """ERA: softmax(mean / tau), of probabilities and not of logits; SA: the mean as it is."""
    tau: PositiveFloat = field(0.1, used_if={"aggregation": other_than("sa")})
    """ERA: temperature; smaller is sharper."""
    subset: PositiveInt = 1000
    """Public examples of a round, drawn anew for each."""
    distil_epochs: NonNegativeInt = 5
    """Epochs over the round's public examples, for clients and server."""
    distil_lr: PositiveFloat | None = field(None, used_if="distil_epochs")
    """Learning rate of the clients' distillation; none: that of local training."""
    server_lr: PositiveFloat = field(0.1, used_if={"distil_epochs": above(0), "models.server": SET})
    """Learning rate of the server's distillation, by plain SGD in batches of local.batch."""

    def shared(self, name: str) -> bool:
        return False

    def init(self, fed: Federation) -> Params:
        return (
            fed.initial(architecture=fed.job.models.server) if fed.job.models.server else Params()
        )

    def receive(self, client: Client, state: Params) -> None:
        pass

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        return score_server(fed, fed.job.models.server, state) if state else {}

    def predictions(
        self, fed: Federation, client: Client, state: Params, t: int, public: Shard
    ) -> Upload:
        """Train the client on its own data; return its soft predictions of the public examples."""
        self.train(fed, client, state, t)
        soft = soften(logits(fed, client, public))
        return Upload(Mean.of(Params(soft=soft), self.weight(client)), lasting=False)

    def learn(
        self, fed: Federation, client: Client, t: int, public: Shard, aggregate: Tensor
    ) -> None:
        """Let the client learn the aggregate of the soft predictions, [n, C]."""
        download = fed.down(client, aggregate)
        if self.distil_epochs:
            how: dict[str, Any] = {
                "epochs": self.distil_epochs,
                "lr": self.distil_lr,
                "phase": "distil",
            }
            data = Paired(public, download)
            sgd(fed, client, t, lambda model, x, y: F.cross_entropy(model(x), y), data=data, **how)

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        public = fed.public.pick(fed.draw_public(t, self.subset))
        soft = fed.stream(cohort, lambda client: self.predictions(fed, client, state, t, public))
        mean = fed.mean(
            soft, keep=Params(soft=torch.zeros(len(public), fed.classes, device=fed.device))
        )["soft"]
        aggregate = soften(mean, self.tau) if self.aggregation == "era" else mean
        fed.run(cohort, lambda client: self.learn(fed, client, t, public, aggregate))
        if not (state and self.distil_epochs):
            return state
        how: dict[str, Any] = {
            "epochs": self.distil_epochs,
            "size": fed.job.local.batch,
            "lr": self.server_lr,
        }
        data = Paired(public, aggregate)
        return fed.on_root(
            lambda: fit_targets(
                fed, fed.job.models.server, state, data, F.cross_entropy, "server", t, **how
            )
        )
