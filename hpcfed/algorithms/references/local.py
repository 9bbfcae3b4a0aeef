"""Local training: each client of the cohort trains alone, nothing is exchanged.

It is the baseline of all papers ("Standalone", "NoFed"). With contrastive = true it trains with the
two views and the loss of FedClassAvg's clients. This comparison separates the gain of federation
from the gain of these two. preset = "authors" has the same values of that loss for both methods.

Objective: F_k(w_k)
Server: none
Round:
1. Each client of the cohort trains its own model on its own examples.
2. Nothing is sent, and the server does nothing.
3. Each client is evaluated with its own model.
"""

from typing import Any, ClassVar

from pydantic import PositiveFloat
from torch import Tensor

from hpcfed import Client, Guide, Model, Params, RoundBased
from hpcfed.config.conditions import Unused, field
from hpcfed.training.losses import contrastive_cross_entropy


class Local(RoundBased):
    """Clients share nothing, so all of them may have different models."""

    guide = Guide(
        data="very different data, much of it each",
        sent="nothing",
        won="the reference: no paper's own method",
    )

    accepts: ClassVar[str] = "any models"
    keeps_stragglers: ClassVar[bool] = True
    unused: ClassVar[Unused] = {
        "weighting": "nothing is averaged",
        "compression.by": "nothing is sent",
        "compression.down": "nothing is sent",
        "secure.by": "nothing is sent",
        "attack.by": "nothing is sent",
        "defence.by": "nothing is averaged",
    }

    contrastive: bool = False
    """Train on two augmented views with the supervised contrastive loss beside cross-entropy."""
    tau: PositiveFloat = field(0.07, used_if="contrastive")
    """Temperature of the contrastive loss."""
    tau_base: PositiveFloat | None = field(None, used_if="contrastive")
    """The contrastive loss is multiplied by tau over this; none: by 1."""
    normalise: bool = field(True, used_if="contrastive")
    """Contrastive loss on representations scaled to length 1."""

    @property
    def needs_classes(self) -> str:
        return "algorithm.contrastive contrasts classes" if self.contrastive else ""

    @property
    def views(self) -> int:
        return 2 if self.contrastive else 1

    def shared(self, name: str) -> bool:
        return False

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        if self.contrastive:
            return contrastive_cross_entropy(
                model, x, y, self.tau, self.tau_base, self.normalise, client.task.loss
            )
        return super().loss(client, state, model, x, y)
