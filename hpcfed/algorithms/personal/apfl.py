"""APFL: each client predicts by a mixture of the common model and a model of its own.

Deng et al. (Adaptive Personalized Federated Learning), 2020, arXiv:2003.13461, algorithm 1. w is
the common model, v_k the client's own.

Objective: F_k(w); F_k(alpha_k v_k + (1 - alpha_k) w)
Server: w <- mean_k w_k
Round:
1. The server sends w to the cohort.
2. In each step a client moves w down the first objective and v_k down the second, on one batch.
3. With adapt its alpha_k moves down the second too, and stays between 0 and 1.
4. The client sends w_k; v_k and alpha_k stay.
5. The server takes the mean. A client predicts by the mixture.

Deviations: the mixture is of weights, as in the paper; the authors' code (preset authors) mixes the
logits of both models, adapts alpha_k once per round, and adds decay alpha_k to its gradient. There
alpha_k follows the two models' gradients of the mixed logits, weighted by alpha_k and 1 - alpha_k;
here it follows the derivative of the second objective. The weight decay of the job's optimiser acts
on w and v_k. Running statistics of batch normalisation of the mixture are those of v_k, which
follow the mixture's forward passes. v_k starts as w does. Public ports are not followed: PFLlib
trains v_k without the mixture, and then overwrites it by the mixture; FL-bench moves w twice in a
step; in fluke no gradient reaches v_k.
"""

from functools import partial
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.func import functional_call

from hpcfed import Client, Federation, Guide, LocalSteps, Model, Params, Share
from hpcfed.algorithms.personal.second import WithSecond
from hpcfed.config.conditions import field, other_than
from hpcfed.models.personal import WithPersonal
from hpcfed.models.variants import name_variant


class APFL(WithSecond):
    """The common model is that of FedAvg with equal weights, bit for bit.

    With alpha = 0 clients predict by it; with alpha = 1 each one's own model is trained alone.
    """

    guide = Guide(
        data="different labels",
        sent="all weights of the common model",
        won="few classes per client: above FedAvg and local training",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: 1, or its number of training examples."""
    alpha: Share = 0.5
    """Share of the client's own model in its mixture, at the start if it adapts."""
    mix: Literal["weights", "logits"] = "weights"
    """What is mixed: the weights of both models, or their logits."""
    adapt: Literal["never", "steps", "rounds"] = "never"
    """When a client's alpha moves: in each step, or in the first step of a round."""
    decay: NonNegativeFloat = field(0.0, used_if={"adapt": other_than("never")})
    """Weight of alpha^2 / 2 in the objective of alpha."""

    @property
    def variants(self) -> tuple[str, ...]:
        return (name_variant("mixture", self.alpha, self.mix),)

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Tensor) -> Tensor:
        logits = model.classify_common(x)
        mixed = model.mixture(x, state.get("alpha", model.alpha), logits)
        return client.task.loss(logits, y) + client.task.loss(mixed, y)

    def train(self, fed: Federation, client: Client, received: Params, t: int, **how: Any) -> int:
        if self.adapt == "never":
            return super().train(fed, client, Params(), t, **how)
        with LocalSteps(fed, client, t, **how) as steps:
            for x, y in steps:
                adapts = self.adapt == "steps" or not steps.losses
                alpha = steps.skeleton.view("alpha").clone().requires_grad_(adapts)
                value = steps.value(partial(self.loss, client, Params(alpha=alpha)), x, y)
                if adapts:
                    (slope,) = torch.autograd.grad(value, alpha, retain_graph=True)
                steps.descend(value)
                if adapts:
                    step = steps.lr * (slope + self.decay * alpha.detach())
                    client.load({"alpha": (alpha.detach() - step).clamp(0, 1)})
        return len(steps)


class Mixture(WithPersonal):
    """A common model w, a client's own model v, and the share alpha of the latter.

    mix: of "weights" or "logits".
    """

    alpha: Tensor

    def __init__(self, model: Model, alpha: float, mix: str):
        super().__init__(model, "model")
        self.mix = mix
        self.register_buffer("alpha", torch.tensor(alpha))

    def forward(self, x: Any) -> Tensor:
        return self.mixture(x, self.alpha)

    def mixture(self, x: Any, alpha: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the logits of the mixture, [n, C], whose gradient moves v and alpha alone.

        logits: those of the common model, if they are there already.
        """
        if self.mix == "logits":
            common = self.classify_common(x) if logits is None else logits
            return alpha * self.personal(x) + (1 - alpha) * common.detach()
        w = dict(self.named_parameters())
        mixed = {
            name: alpha * v + (1 - alpha) * w[name].detach()
            for name, v in self.personal.named_parameters()
        }
        return functional_call(self.personal, mixed, (x,))


def add_model(model: Model, alpha: float, mix: str) -> Mixture:
    """Return the model with a second one, "personal", and their share "alpha"."""
    return Mixture(model, alpha, mix)
