"""FedClassAvg: clients with different bodies share one classifier and learn contrastively.

Jang et al., ICPP 2022, doi:10.1145/3545008.3545073, algorithm 1, eqs. 3-5. The contrastive loss
makes the clients' representations agree.

Objective: CE + L_SupCon + rho ||c_k - c||
Server: c <- sum_k p_k c_k
Round:
1. The server sends the classifier c to the cohort.
2. Each client puts it on its own body.
3. It trains on two views of its examples: cross-entropy on the first, the contrastive loss on both.
4. It sends its classifier c_k; its body stays.
5. The server takes the weighted mean of the classifiers.

Deviations: the mean is over the clients that report, not over all. The paper gives neither
temperature nor normalisation of the contrastive loss; the defaults are those of Khosla et al. The
authors' code differs, and preset = "authors" follows it: prox = "mse", tau = 100 over base 0.07 on
representations that are not normalised, and an epoch of training before a client's first round; in
that code all clients do it before round 1. That code also leaves out the last, smaller batch of
each epoch. It applies the proximal term in the epoch beforehand too; here this epoch has no such
term, because nothing has been received, and its losses count in the training loss of the client's
first round. share = "all" is the paper's "+weight" for one architecture.
"""

from typing import Any, ClassVar, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Model, Params, RoundBased, Upload
from hpcfed.config.conditions import Unused, field, unless
from hpcfed.models.model import in_head
from hpcfed.training.losses import contrastive_cross_entropy, distance, half_mean_squares, proximal


class FedClassAvg(RoundBased):
    """Classifier averaging; averaging, rho and contrastive are the switches of the paper's table 4.

    In the table they are called CA, PR and CL.
    """

    guide = Guide(
        data="different labels",
        sent="the classifier alone",
        won="20 clients with four architectures, above KT-pFL and FedProto",
    )

    alone: ClassVar[dict[str, Any]] = {"algorithm.averaging": False}
    unused: ClassVar[Unused] = {
        "weighting": unless("averaging"),
    }

    share: Literal["head", "all"] = field("head", used_if="averaging")
    """Exchange the classifier only, or all weights ("+weight", one architecture)."""
    averaging: bool = True
    """CA: exchange and average; if false, clients train alone and the proximal term has no anchor.
    """
    rho: NonNegativeFloat = field(0.1, used_if="averaging")
    """PR: weight of the proximal term on the classifier; 0 switches it off."""
    prox: Literal["norm", "squared", "mse"] = field("norm", used_if="rho")
    """Proximal term: the distance (eq. 5), half its square, or half the sum of mean squares
    (authors' code).
    """
    contrastive: bool = True
    """CL: two augmented views and the supervised contrastive loss."""
    tau: PositiveFloat = field(0.07, used_if="contrastive")
    """Temperature of the contrastive loss."""
    tau_base: PositiveFloat | None = field(None, used_if="contrastive")
    """The contrastive loss is multiplied by tau / tau_base; none: by 1."""
    normalise: bool = field(True, used_if="contrastive")
    """Scale representations to length 1 in the contrastive loss."""
    pretrain_epochs: NonNegativeInt = field(0, used_if=({"averaging": False}, {"share": "head"}))
    """Epochs that a client trains alone before its first round."""

    @property
    def accepts(self) -> str:
        if not self.averaging:
            return "any models"
        return "one architecture" if self.share == "all" else "a common head"

    @property
    def needs_classes(self) -> str:
        return "algorithm.contrastive contrasts classes" if self.contrastive else ""

    @property
    def views(self) -> int:
        return 2 if self.contrastive else 1

    @property
    def trains_once(self) -> bool:
        """Whether the head is not trained alone beforehand."""
        return not self.pretrain_epochs or self.share == "all"

    def shared(self, name: str) -> bool:
        return self.averaging and (self.share == "all" or in_head(name))

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        if self.contrastive:
            value = contrastive_cross_entropy(
                model, x, y, self.tau, self.tau_base, self.normalise, client.task.loss
            )
        else:
            value = super().loss(client, state, model, x, y)
        head = state.pick(in_head)
        return value + self.rho * self.regulariser(model, head) if self.rho and head else value

    def regulariser(self, model: Model, head: Params) -> Tensor:
        """Return R of eq. 5, the distance of the classifier from the received one."""
        if self.prox == "squared":
            return proximal(model, head, mu=1.0)
        return distance(model, head) if self.prox == "norm" else half_mean_squares(model, head)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload | None:
        if not self.trains_once and "pretrained" not in client.memory:
            self.train(fed, client, Params(), t, epochs=self.pretrain_epochs, phase="pretrain")
            client.memory["pretrained"] = 1
        return super().local(fed, client, state, t)
