"""FedProto: clients exchange only prototypes, the mean representation of each class.

Tan et al., AAAI 2022, arXiv:2105.00243, algorithm 1, eqs. 3, 6 and 8. The squared difference of
each example's representation and its class's prototype is averaged over examples and over the d
components, as in the authors' code, to which the published values of lam belong (1, and 0.1 on
CIFAR-10).

Objective: CE + lam ||z - q_y||^2 / d
Server: q_c <- sum_k n_kc q_kc / sum_k n_kc
Round:
1. The server sends the prototypes q of all classes.
2. Each client trains; its representations z approach the prototypes of their classes.
3. It computes the mean representation q_kc of its n_kc examples of each class c.
4. It sends these prototypes and the numbers.
5. The server averages them by class, weighted by examples.

Deviations: eq. 8 has the distance of class means, summed over d (reduction = "sum" sums over d).
Class means are computed after local training; the authors' code collects them during its last
epoch, while the model changes (prototypes = "during"; here during all epochs). Weights sum to 1,
without the further 1/|N_j| of eq. 6. The authors' code weights clients equally (weighting =
"uniform"), the paper by their examples of the class (default). Prediction is by the nearest of all
prototypes; the authors' code considers only those of the client's own classes.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional as F

from hpcfed import (
    Client,
    Federation,
    Guide,
    Job,
    LocalSteps,
    Mean,
    Model,
    Params,
    RoundBased,
    Upload,
)
from hpcfed.algorithms.base import OWN_LOSS
from hpcfed.algorithms.common_head.class_means import choose_predictor
from hpcfed.config.conditions import Unused, field, other_than, unless
from hpcfed.training import examples
from hpcfed.training.infer import class_sums, represent
from hpcfed.training.losses import to_prototypes


class FedProto(RoundBased):
    """Prototype averaging; the state is one prototype per class, [C, d].

    A row is nan if no client has sent the class yet.
    """

    guide = Guide(
        data="different labels",
        sent="class means",
        won="few bytes, mildly different CNNs",
    )

    needs_classes: ClassVar[str] = "it averages prototypes of classes"
    accepts: ClassVar[str] = "a common head"
    per: ClassVar[str] = "row"
    unused: ClassVar[Unused] = {
        **OWN_LOSS,
        "weighting": unless(("lam", {"inference": other_than("head")})),
    }

    lam: NonNegativeFloat = 1.0
    """Weight of the distance of representations to their class's prototype; 0 is local training."""
    reduction: Literal["mean", "sum"] = "mean"
    """The squared distance over the d components: their mean, as for the published lam, or their
    sum, which is d times as strong.
    """
    inference: Literal["prototype", "head"] = "prototype"
    """Predict the class of the nearest prototype, or with the client's own head."""
    prototypes: Literal["after", "during"] = field(
        "after", used_if=("lam", {"inference": other_than("head")})
    )
    """Class means are computed over all examples after local training, or batch by batch during it.
    """

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if self.prototypes == "during" and job.local.steps:
            reasons["job"] = (
                "needs whole epochs to collect prototypes in; set local.epochs instead of steps"
            )
        return reasons

    def shared(self, name: str) -> bool:
        return False

    def init(self, fed: Federation) -> Params:
        return Params(proto=torch.full_like(fed.initial()["head.weight"], torch.nan))  # [C, d]

    def receive(self, client: Client, state: Params) -> None:
        pass

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        return self.objective(state, model, model.body(x), y)

    def objective(self, state: Params, model: Model, z: Tensor, y: Tensor) -> Tensor:
        """Return the local objective at these representations, [n, d]."""
        value = F.cross_entropy(model.head(z), y)
        if not self.lam:
            return value
        return value + self.lam * to_prototypes(z, state["proto"][y], self.reduction)

    def predictor(self, fed: Federation, client: Client, state: Params) -> Callable[[Any], Tensor]:
        return choose_predictor(client.model, state["proto"], self.inference)

    def collect(
        self, fed: Federation, client: Client, received: Params, t: int
    ) -> tuple[Tensor, np.ndarray]:
        """Train locally and return the representations of all steps and their labels.

        representations: [n * epochs, d].
        labels: [n * epochs].
        It takes the steps itself: where an engine records steps, values that a loss stores would be
        lost.
        """
        representations, labels = [], []

        def loss(model: Model, x: Any, y: Tensor) -> Tensor:
            z = model.body(x)
            representations.append(z.detach())
            labels.append(y)
            return self.objective(received, model, z, y)

        with LocalSteps(fed, client, t) as steps:
            if steps.private:
                examples.refuse(fed, "its clients send means of representations of their examples")
            for x, y in steps:
                steps.learn(loss, x, y)
        return torch.cat(representations), torch.cat(labels).cpu().numpy()

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        if self.prototypes == "during":
            z, labels = self.collect(fed, client, download, t)
        else:
            self.train(fed, client, download, t)
            z, labels = represent(fed, client, client.train), client.train.labels
        sums, count = class_sums(z, labels, fed.classes)
        classes = count.nonzero().squeeze(1)
        means = Params(proto=(sums[classes] / count[classes, None]).float())
        weight = Params(proto=count[classes, None].float()) if self.weighting == "samples" else 1.0
        return Upload(Mean.of(means, weight, at={"proto": (classes.cpu(),)}))
