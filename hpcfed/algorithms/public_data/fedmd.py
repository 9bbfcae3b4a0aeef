"""FedMD: clients with different architectures agree on their logits of public examples.

Li and Wang, 2019, arXiv:1910.03581, algorithm 1.

Objective: ||f_k(x) - f(x)||_1 / C, then F_k(w_k)
Server: f(x) = mean_k f_k(x)
Round:
1. Before the first round each client learns the labels of the public data, then its own (transfer).
2. The cohort sends its logits f_k(x) of some public examples x.
3. The server sends their mean, the consensus.
4. Each client approaches it (digest): the error is the mean over the C logits.
5. It continues with its own data (revisit).

Deviations: transfer_epochs instead of training to convergence. The digest's loss, open in the
paper, is that of the authors' code.
"""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from hpcfed import (
    Client,
    Federation,
    Guide,
    Mean,
    Model,
    Paired,
    Params,
    RoundBased,
    Shard,
    Upload,
    sgd,
)
from hpcfed.algorithms.base import check_public_labels
from hpcfed.config.conditions import field
from hpcfed.training.infer import logits
from hpcfed.training.losses import distil, soften


class FedMD(RoundBased):
    """With digest_epochs = 0 and without transfer FedMD is local training, bit for bit."""

    guide = Guide(
        data="different labels; labelled public data",
        sent="scores of public examples",
        won="above training alone, with independently designed models",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"
    accepts: ClassVar[str] = "any models"
    needs: ClassVar[tuple[str, ...]] = ("public",)
    trains_once: ClassVar[bool] = False
    alone: ClassVar[dict[str, Any]] = {"algorithm.digest_epochs": 0}

    weighting: Literal["samples", "uniform"] = field("uniform", used_if="digest_epochs")
    """Weight of a client in the consensus: 1, or its number of training examples."""
    transfer_epochs: NonNegativeInt = 5
    """Epochs on the labelled public data, then as many on the client's own data, before the first
    round; 0: none.
    """
    subset: PositiveInt = field(5000, used_if="digest_epochs")
    """Public examples of a round, drawn anew for each."""
    digest: Literal["mae", "kl"] = field("mae", used_if="digest_epochs")
    """Distance to the consensus: mean absolute error of the logits, or KL of the soft
    predictions.
    """
    digest_epochs: NonNegativeInt = 1
    """Epochs over the round's public examples; 0: nothing is exchanged."""
    digest_batch: PositiveInt = field(256, used_if="digest_epochs")
    """Examples in one step of the digest."""

    def shared(self, name: str) -> bool:
        return False

    def init(self, fed: Federation) -> Params:
        if self.transfer_epochs:
            check_public_labels(fed, "set algorithm.transfer_epochs = 0")
        return Params()

    def transfer(self, fed: Federation, client: Client, state: Params, t: int) -> None:
        """Do a client's transfer learning, once, before its first round.

        Its memory records that it is done.
        """
        if self.transfer_epochs and "transferred" not in client.memory:
            how: dict[str, Any] = {"epochs": self.transfer_epochs}
            self.train(fed, client, state, t, data=fed.public, phase="transfer", **how)
            self.train(fed, client, state, t, data=client.train, phase="transfer to own", **how)
            client.memory["transferred"] = 1

    def approach(self, model: Model, x: Any, consensus: Tensor) -> Tensor:
        return (
            F.l1_loss(model(x), consensus)
            if self.digest == "mae"
            else distil(soften(consensus), model(x))
        )

    def answer(self, fed: Federation, client: Client, public: Shard) -> Upload:
        """Return the client's logits of the round's public examples."""
        sent = Params(logits=logits(fed, client, public))
        return Upload(Mean.of(sent, self.weight(client)), lasting=False)

    def learn(
        self,
        fed: Federation,
        client: Client,
        state: Params,
        t: int,
        public: Shard,
        consensus: Tensor,
    ) -> None:
        """Let the client approach the consensus, [n, C], and train it on its own data."""
        download = fed.down(client, consensus)
        how: dict[str, Any] = {
            "epochs": self.digest_epochs,
            "size": self.digest_batch,
            "phase": "digest",
        }
        sgd(fed, client, t, self.approach, data=Paired(public, download), **how)
        self.revisit(fed, client, state, t)

    def revisit(self, fed: Federation, client: Client, state: Params, t: int) -> None:
        """Train the client on its own data."""
        self.train(fed, client, state, t)

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        fed.run(range(fed.K), lambda client: self.transfer(fed, client, state, t))
        if not self.digest_epochs:
            fed.run(cohort, lambda client: self.revisit(fed, client, state, t))
            return state
        public = fed.public.pick(fed.draw_public(t, self.subset))
        uploads = fed.stream(cohort, lambda client: self.answer(fed, client, public))
        keep = Params(logits=torch.zeros(len(public), fed.classes, device=fed.device))
        consensus = fed.mean(uploads, keep=keep)["logits"]
        fed.run(cohort, lambda client: self.learn(fed, client, state, t, public, consensus))
        return state
