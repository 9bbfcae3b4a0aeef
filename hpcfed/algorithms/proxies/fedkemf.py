"""FedKEMF: own models and a small knowledge network learn from each other on each client.

The server fuses the knowledge networks: it trains one on their joint predictions for public data.

Yu et al. (Resource-aware Federated Learning using Knowledge Extraction and Multi-model Fusion),
2022, arXiv:2208.07978. models.proxy is the knowledge network w. s are soft predictions of it and of
the own model; f are its logits.

Objective: CE_own + KL(s_common || s_own) + CE_common + KL(s_own || s_common)
Server: w <- sum_k p_k w_k, then w <- argmin_w tau^2 KL(softmax(max_k f_k(x) / tau) ||
    softmax(f_w(x) / tau))
Round:
1. The server sends the knowledge network to the cohort.
2. Each client trains its own model and this network, which learn from each other.
3. It sends the knowledge network w_k alone.
4. The server starts from the mean of these networks.
5. It learns their largest logit of each class on unlabelled public examples x.

Deviations: teachers are constants in the mutual learning; both networks take their steps at once.
The authors' code (preset authors) has the mean squared difference of logits instead of KL, and the
mean of soft predictions as its teacher. Its server continues from its network of the previous
round, and learns half from labels and half by the squared difference of probabilities at
temperature 20. Its server's learning rate falls by a cosine to 0 within each round
(server_schedule). Not followed: its clients' rate falls so too; it draws its 5,000 labelled
examples from the clients' own data, with replacement, and lets the gradient of one network's loss
run into the other.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Job, Mean, Paired, Params, Shard, Share
from hpcfed.algorithms.base import score_server
from hpcfed.algorithms.proxies.pairs import AveragedProxy
from hpcfed.config.conditions import Unused, below, field, other_than, unless
from hpcfed.models.model import Pair
from hpcfed.training.infer import outputs
from hpcfed.training.losses import distil, soften
from hpcfed.training.server import fit_targets, predictor


class FedKEMF(AveragedProxy):
    """With server_epochs = 0 FedKEMF is FML with alpha = beta = 0.5 and twice its losses."""

    guide = Guide(
        data="different labels; public data",
        sent="the small knowledge network",
        won="fewer bytes on CIFAR-10 with several architectures",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"
    unused: ClassVar[Unused] = {
        "weighting": unless(({"start": other_than("previous")}, {"ensemble": other_than("max")})),
    }
    trains_once: ClassVar[bool] = False

    mutual: Literal["kl", "mse"] = "kl"
    """How a client's two models learn from each other: KL of soft predictions, or mean squared
    difference of logits.
    """
    ensemble: Literal["max", "mean", "soft"] = field("max", used_if={"label_share": below(1)})
    """Target of the server: the largest logit of each class, the mean of logits, or the mean of
    soft predictions (at temperature 1), both by `weighting`.
    """
    start: Literal["mean", "previous"] = field("mean", used_if="averaging")
    """Start of the server's network: the mean of the uploaded ones, or its own of the previous
    round.
    """
    subset: PositiveInt = field(5000, used_if="server_epochs")
    """Public examples of a round, drawn anew for each."""
    server_epochs: NonNegativeInt = field(20, used_if="averaging")
    """Epochs of the server over these examples."""
    server_lr: PositiveFloat = field(0.01, used_if="server_epochs")
    """Learning rate of the server, by plain SGD."""
    server_schedule: Literal["constant", "cosine"] = field("constant", used_if="server_epochs")
    """Schedule of that rate over the server's steps of a round: constant, or a cosine to 0."""
    server_batch: PositiveInt = field(128, used_if="server_epochs")
    """Examples in one step of the server."""
    distance: Literal["kl", "mse"] = field("kl", used_if={"label_share": below(1)})
    """Distance to the ensemble: KL, or the mean squared difference of probabilities; both times
    tau^2.
    """
    tau: PositiveFloat = field(1.0, used_if={"label_share": below(1)})
    """Temperature of the student, and of the ensemble's logits."""
    label_share: Share = field(0.0, used_if="server_epochs")
    """Share of cross-entropy with the public labels in the server's loss; the rest is the
    distance.
    """

    @property
    def needs(self) -> tuple[str, ...]:
        return ("proxy", "public") if self.averaging else ("proxy",)

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if self.label_share and job.data.public_source:
            reasons["job"] = (
                "needs public data with the clients' labels to learn them, but data.public_source "
                "is another data set; set algorithm.label_share = 0"
            )
        return reasons

    def loss(self, client: Client, state: Params, model: Pair, x: Any, y: Tensor) -> Tensor:
        private, proxy = model.own(x), model.proxy(x)
        if self.mutual == "kl":
            mutual = distil(soften(proxy), private) + distil(soften(private), proxy)
        else:
            mutual = F.mse_loss(private, proxy.detach()) + F.mse_loss(proxy, private.detach())
        return client.task.loss(private, y) + client.task.loss(proxy, y) + mutual

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        server = state.under("proxy.")
        return score_server(fed, fed.job.models.proxy, server) if server else {}

    def teacher(self, fed: Federation, logits: Mapping[int, Tensor], public: Shard) -> Tensor:
        """Return the ensemble's soft predictions, [U, C]; logits: of this rank's clients."""
        if self.ensemble == "max":
            maxima = {min(logits): torch.stack(list(logits.values())).amax(0)} if logits else {}
            # a maximum does not depend on the order
            best = torch.stack([z for _, z in fed.each(maxima)]).amax(0)
            return soften(best, self.tau)
        keep = Params(z=torch.zeros(len(public), fed.classes, device=fed.device))
        predictions = {k: soften(z) if self.ensemble == "soft" else z for k, z in logits.items()}
        parts = (
            (k, Mean.of(Params(z=z), self.weight(fed.clients[k]))) for k, z in predictions.items()
        )
        mean = fed.mean(parts, keep=keep)["z"]
        return mean if self.ensemble == "soft" else soften(mean, self.tau)

    def student_loss(self, z: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the server's loss on one batch.

        z: the server's logits [n, C].  batch: labels [n], and soft predictions of the teacher [n,
        C].
        """
        labels, target = batch
        if self.distance == "kl":
            distance = distil(target, z, self.tau)
        else:
            distance = self.tau**2 * F.mse_loss(F.softmax(z / self.tau, dim=1), target)
        if not self.label_share:
            return distance
        supervised = F.cross_entropy(z, labels)
        return self.label_share * supervised + (1 - self.label_share) * distance

    def aggregate(self, fed: Federation, state: Params, uploads: list[tuple[int, Mean]]) -> Params:
        mean = fed.mean(uploads, keep=state)
        start = mean if self.start == "mean" else state
        if not (self.averaging and self.server_epochs):
            return start
        public = fed.public.pick(fed.draw_public(fed.t, self.subset))
        logits = {}
        for k, sent in uploads:
            knowledge = sent.terms[0].value.under("proxy.")
            answer = predictor(fed, fed.job.models.proxy, knowledge)
            logits[k] = outputs(fed, answer, public)
        teacher = self.teacher(fed, logits, public)
        data = Paired(public, teacher, with_labels=True)
        fused = fed.on_root(
            lambda: fit_targets(
                fed,
                fed.job.models.proxy,
                start.under("proxy."),
                data,
                self.student_loss,
                "fusion",
                fed.t,
                epochs=self.server_epochs,
                size=self.server_batch,
                lr=self.server_lr,
                schedule=self.server_schedule,
            )
        )
        return fused.prefixed("proxy.")
