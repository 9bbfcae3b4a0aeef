"""FedProto: clients exchange nothing but the mean representation of each class, and pull their own
towards it.

Tan et al., AAAI 2022, arXiv:2105.00243, algorithm 1, eqs. 3, 6 and 8. Deviations: class means are
taken after local training; the authors' code collects them during it, from models that change
(prototypes = "during"; there of the last epoch alone). Weights sum to 1, without the further
1/|N_j| of eq. 6. The term is the squared distance of each example, summed over d; eq. 8 has class
means, and the code a mean over d, so that its lam is d times this one. The code weights clients
alike (weighting = "uniform"), the paper by their examples of the class (default).
"""

from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat
from torch.nn import functional as F

from hpcfed.algorithms.base import RoundBased, single_step
from hpcfed.params import Mean, Params
from hpcfed.training.infer import class_sums, represent
from hpcfed.training.local import sgd
from hpcfed.training.losses import nearest, to_prototypes


class FedProto(RoundBased):
    """The state is one prototype a class, [C, d]; nan where no client has shown the class yet."""

    accepts: ClassVar[str] = "a common head"

    lam: NonNegativeFloat = 1.0
    """Weight of the distance of representations to their class's prototype; 0 is local training."""
    inference: Literal["prototype", "head"] = "prototype"
    """The class of the nearest prototype, or the client's own head."""
    prototypes: Literal["after", "during"] = "after"
    """When class means are taken: of all examples after local training, or batch by batch during
    it.
    """

    def refuses(self, job):
        steps = self.prototypes == "during" and job.local.steps
        return (
            "needs whole epochs to collect prototypes in; set local.epochs instead of steps"
            if steps
            else None
        )

    def without_effect(self, job):
        found = super().without_effect(job) | single_step(job)
        if not self.lam and self.inference == "head":
            why = "lam = 0 with inference = 'head' uses no prototypes"
            found |= {"algorithm.prototypes": why, "algorithm.weighting": why}
        return found

    def shared(self, name):
        return False

    def traffic(self, fed, k):
        d, own = fed.shapes()["head.weight"].shape[1], int((fed.label_counts[k] > 0).sum())
        return 4 * fed.classes * d, 4 * own * (d + (self.weighting == "samples"))

    def init(self, fed):
        return Params(proto=torch.full_like(fed.initial()["head.weight"], torch.nan))  # [C, d]

    def receive(self, client, state):
        pass

    def loss(self, client, state, model, x, y, seen):
        z = model.body(x)
        seen.extend([(z.detach(), y)] if self.prototypes == "during" else [])
        value = F.cross_entropy(model.head(z), y)
        return value + self.lam * to_prototypes(z, state["proto"][y]) if self.lam else value

    def predict(self, fed, client, state, x):
        if self.inference == "head" or state["proto"].isnan().all():
            return client.model(x)
        return nearest(client.model.body(x), state["proto"])

    def local(self, fed, client, state, t):
        fed.down(client, state)
        seen = []
        sgd(fed, client, t, partial(self.loss, client, state, seen=seen))
        if seen:
            z, y = map(torch.cat, zip(*seen, strict=True))
        else:
            z, y = represent(fed, client, client.train), torch.from_numpy(client.train.labels)
        sums, count = class_sums(z, y.cpu().numpy(), fed.classes)
        own = count.nonzero().squeeze(1)
        means = Params(proto=(sums[own] / count[own, None]).float())
        weight = Params(proto=count[own, None].float()) if self.weighting == "samples" else 1.0
        return Mean.of(means, weight, at={"proto": (own.cpu(),)})

    def round(self, fed, state, cohort, t):
        uploads = fed.turns(cohort, lambda client: self.local(fed, client, state, t))
        return fed.mean(uploads, keep=state, per="row")
