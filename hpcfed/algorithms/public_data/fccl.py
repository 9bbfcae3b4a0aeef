"""FCCL: clients correlate their logits of public examples with the mean logits of all clients.

Then they train on their own data, with their last and their first model as teachers.

Huang et al. (Learn from Others and Be Yourself in Heterogeneous Federated Learning), CVPR 2022,
doi:10.1109/CVPR52688.2022.00985; the authors' code has it beside FCCL+, arXiv:2309.16286.

M [C, C] is the cross-correlation of a client's logits and the mean, standardised over a batch. s_k
is a client's soft prediction, s_prev that of its model at the end of its last round (inter), and
s_0 that of its first model, trained on its own data alone (intra).

Objective: sum_u ((1 - M_uu)^2 + lam sum_(v not u) (1 + M_uv)^2), then CE + inter KL(s_prev || s_k)
    + intra KL(s_0 || s_k)
Server: f(x) = mean_k f_k(x)
Round:
1. A client that takes part for the first time trains its first model.
2. The cohort sends its logits f_k(x) of some public examples x and receives their mean.
3. Each client draws M to 1 on the diagonal and to -1 elsewhere, on the public examples.
4. It trains on its own data, with its last and its first model as teachers.

Deviations: logits are exchanged once per round, as in the paper; the authors' code does so for each
public batch, with a new Adam each time. Here the steps on public data are those of the job's
optimiser, with its momentum and weight decay, at `public_lr`; in the paper Adam's, as in the
method's job. Their codes replace the client's own part of the mean by the logits of its last
round's model (own_entry = "previous", which is what a client has just sent) or by those that it has
now ("current"). The standard deviations are those of M's own divisor, B, and a constant logit
counts as 0; the code divides the unbiased ones by B. Both teachers see examples without
augmentation, in eval mode. The code's variant that averages weights too, for one architecture, is
left out.
"""

from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import (
    Client,
    Federation,
    Guide,
    Job,
    Mean,
    Model,
    Paired,
    Params,
    RoundBased,
    Shard,
    Upload,
    sgd,
)
from hpcfed.config.conditions import above, field, other_than
from hpcfed.training.infer import logits
from hpcfed.training.losses import cross_correlation, distil, soften


class FCCL(RoundBased):
    """With public_epochs = pretrain_epochs = inter = 0 FCCL is local training, bit for bit."""

    guide = Guide(
        data="different domains; public data",
        sent="scores of public examples",
        won="digits and office photographs from several domains",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"
    accepts: ClassVar[str] = "any models"
    needs: ClassVar[tuple[str, ...]] = ("public",)
    trains_once: ClassVar[bool] = False

    # both teachers are models of the client's own
    alone: ClassVar[dict[str, Any]] = {"algorithm.public_epochs": 0, "algorithm.own_entry": None}

    weighting: Literal["samples", "uniform"] = field("uniform", used_if="public_epochs")
    """Weight of a client in the mean: 1, or its number of training examples."""
    subset: PositiveInt = 5000
    """Public examples of a round, drawn anew for each."""
    public_epochs: NonNegativeInt = field(
        1, used_if=({"own_entry": other_than("excluded")}, {"cohort_size": above(1)})
    )
    """Epochs over the round's public examples."""
    public_batch: PositiveInt = field(256, used_if="public_epochs")
    """Public examples in one step, over which logits are correlated; at least 2."""
    public_lr: PositiveFloat = field(1e-3, used_if="public_epochs")
    """Learning rate of these steps, which are those of the job's optimiser."""
    lam: NonNegativeFloat = field(0.0051, used_if="public_epochs")
    """Weight of the entries of M off its diagonal."""
    own_entry: Literal["previous", "current", "excluded"] = field(
        "previous", used_if="public_epochs"
    )
    """A client's own part of the mean: the logits that it sent, those that it has at each step, or
    none.
    """
    pretrain_epochs: NonNegativeInt = 50
    """Epochs on the client's own data before its first round; 0: none, and no intra teacher."""
    inter: NonNegativeFloat = 1.0
    """Weight of the KL to the model at the end of the client's last round."""
    intra: NonNegativeFloat = field(1.0, used_if="pretrain_epochs")
    """Weight of the KL to the client's first model."""

    def refuses(self, job: Job) -> dict[str, str]:
        reasons, n = super().refuses(job), min(self.subset, job.data.public)
        if self.public_epochs and (self.public_batch == 1 or n % self.public_batch == 1):
            reasons["job"] = (
                f"needs batches of two public examples at least, but of {n} in batches of "
                f"{self.public_batch} one is left; set algorithm.public_batch to another number"
            )
        return reasons

    def shared(self, name: str) -> bool:
        return False

    def init(self, fed: Federation) -> Params:
        return Params()

    def receive(self, client: Client, state: Params) -> None:
        pass

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Any) -> Tensor:
        if isinstance(y, Tensor):
            return super().loss(client, state, model, x, y)
        (labels, soft), z = y, model(x)  # soft: [b, 2, C], inter and intra; 0 for a missing teacher
        value = F.cross_entropy(z, labels)
        for i, weight in enumerate((self.inter, self.intra)):
            if weight:
                value = value + weight * distil(soft[:, i], z)
        return value

    def correlate(self, share: Tensor, model: Model, x: Any, others: Tensor) -> Tensor:
        """Return the loss on a batch of public examples.

        share, []: share of the client's present logits in its target.  others: [b, C], the rest of
        the target.
        """
        z = model(x)
        return cross_correlation(z, others + share * z.detach(), self.lam)

    def answer(
        self, fed: Federation, client: Client, state: Params, t: int, public: Shard
    ) -> Upload:
        """Return the client's logits of the public examples; before its first round, train it."""
        if self.pretrain_epochs and "intra" not in client.memory:
            how: dict[str, Any] = {"epochs": self.pretrain_epochs, "phase": "pretrain"}
            self.train(fed, client, state, t, **how)
            client.memory["intra"] = soften(logits(fed, client, client.train))
        sent = Params(logits=logits(fed, client, public))
        return Upload(Mean.of(sent, self.weight(client)), lasting=False)

    def teachers(self, fed: Federation, client: Client) -> Tensor | None:
        """Return the teachers' soft predictions of the client's examples, [n, 2, C].

        None without a teacher.
        """
        intra = client.memory.get("intra") if self.intra else None
        if not self.inter and intra is None:
            return None
        none = torch.zeros(client.n, fed.classes, device=fed.device)
        inter = soften(logits(fed, client, client.train)) if self.inter else none
        return torch.stack([inter, none if intra is None else intra], 1)

    def others(self, mean: Tensor, entry: Tensor, share: float) -> Tensor:
        """Return what the server sends to a client of the mean, as `own_entry` says, [n, C].

        entry: what the client has sent.  share: its share of the mean.
        """
        if self.own_entry == "previous" or (self.own_entry == "excluded" and share == 1):
            return mean
        rest = mean - share * entry
        return rest if self.own_entry == "current" else rest / (1 - share)

    def learn(
        self,
        fed: Federation,
        client: Client,
        state: Params,
        t: int,
        public: Shard,
        others: Tensor,
        share: float,
    ) -> None:
        """Train the client on public data, then on its own.

        others: as `others` returns it.  share: the client's share of the mean.
        """
        teachers, download = self.teachers(fed, client), fed.down(client, others)
        if self.public_epochs and not (self.own_entry == "excluded" and share == 1):
            now = share if self.own_entry == "current" else 0.0
            how: dict[str, Any] = {
                "epochs": self.public_epochs,
                "size": self.public_batch,
                "lr": self.public_lr,
                "phase": "public",
            }
            loss = partial(self.correlate, torch.tensor(now, device=fed.device))
            sgd(fed, client, t, loss, data=Paired(public, download), **how)
        train = (
            client.train if teachers is None else Paired(client.train, teachers, with_labels=True)
        )
        self.train(fed, client, state, t, data=train)

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        public = fed.public.pick(fed.draw_public(t, self.subset))
        sent = fed.run(cohort, lambda client: self.answer(fed, client, state, t, public))
        keep = Params(logits=torch.zeros(len(public), fed.classes, device=fed.device))
        mean = fed.mean(sent.items(), keep=keep)["logits"]
        weight = {k: fed.sizes[k] if self.weighting == "samples" else 1 for k in cohort}
        total = sum(weight.values())

        def learn(client: Client) -> None:
            entry, share = sent[client.id].terms[0].value["logits"], weight[client.id] / total
            self.learn(fed, client, state, t, public, self.others(mean, entry, share), share)

        fed.run(cohort, learn)
        return state
