"""FedBE: the server distils models drawn from a fitted distribution into the mean model.

Chen and Chao, ICLR 2021, arXiv:2009.01974, algorithm 1. SWA is stochastic weight averaging. The
preset `authors` follows the authors' code (hongyouc/FedBE), which fits its Gaussian to directions
of change (posterior = "directions") and draws with a tenth of their standard deviation (its option
`var_scale`).

Objective: F_k(w)
Server: w <- sum_k p_k w_k; then w <- argmin_w KL(sharpen(mean_m softmax f_m(x)) || softmax f_w(x))
Round:
1. The server sends its model to the cohort; each client trains it and sends it.
2. The server fits a distribution to the models and draws models from it.
3. Teachers are the drawn models, the clients' models and their weighted mean; all count equally.
4. This mean model learns the teachers' mean soft prediction, sharpened, on public data.
5. The new model is the mean of its weights in the later of these steps (SWA).

Deviations: batch statistics of drawn models, and of the SWA average, are computed on the public
data; the code draws them, and a variance may be negative. The divergence is summed over classes;
the code takes the mean over them. The server has no weight decay (1e-5 in the code) and a constant
learning rate.
"""

import math
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Federation, Guide, Job, Mean, Paired, Params, RoundBased, Share
from hpcfed.algorithms.bayesian import posterior
from hpcfed.config.conditions import field, other_than
from hpcfed.training.infer import outputs
from hpcfed.training.losses import distil, soften
from hpcfed.training.server import Average, fit_targets, parameters, recalibrate


class FedBE(RoundBased):
    """FedAvg with ensemble distillation on the server; server_epochs = 0 is FedAvg, bit for bit."""

    guide = Guide(
        data="different labels; public data",
        sent="all weights",
        won="deeper networks and Dirichlet labels, above FedAvg",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"
    needs: ClassVar[tuple[str, ...]] = ("public",)

    posterior: Literal["gaussian", "dirichlet", "directions"] = field("gaussian", used_if="samples")
    """Models are drawn from a Gaussian of each value, as mixtures of the clients' models with
    Dirichlet weights, or from the Gaussian of the authors' code.
    """
    samples: NonNegativeInt = field(10, used_if="server_epochs")
    """Number of models drawn per round."""
    std_scale: NonNegativeFloat = field(1.0, used_if={"posterior": other_than("dirichlet")})
    """Factor of the Gaussian's standard deviation; 0: all drawn models are its mean."""
    alpha: PositiveFloat = field(1.0, used_if={"posterior": "dirichlet"})
    """Dirichlet: concentration of the weights."""
    sharpen: PositiveFloat = field(0.5, used_if="server_epochs")
    """Temperature of the teachers' mean prediction p: p^(1 / sharpen), normalised; 1: p itself."""
    server_epochs: NonNegativeInt = 20
    """Passes of the server over the public data."""
    server_lr: PositiveFloat = field(1e-3, used_if="server_epochs")
    """Learning rate of the server."""
    server_momentum: Share = field(0.9, used_if="server_epochs")
    """Momentum of the server's SGD."""
    server_batch: PositiveInt = field(128, used_if="server_epochs")
    """Public examples in one step of the server."""
    swa_start: NonNegativeInt = field(500, used_if="swa_every")
    """Steps before the first model that counts in the SWA average."""
    swa_every: NonNegativeInt = field(25, used_if="server_epochs")
    """Steps between the models of the SWA average; 0, or too few steps: the last model is taken."""

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        steps = self.server_epochs * math.ceil(job.data.public / self.server_batch)
        if self.server_epochs and self.swa_every and steps < self.swa_start + self.swa_every:
            why = f"the server takes {steps} steps, too few for a SWA average"
            reasons |= {"algorithm.swa_start": why, "algorithm.swa_every": why}
        return reasons

    def aggregate(self, fed: Federation, state: Params, uploads: list[tuple[int, Mean]]) -> Params:
        sent, mean, t = dict(uploads), fed.mean(uploads, keep=state), fed.t
        if not self.server_epochs:
            return mean
        nobody = Params(p=torch.zeros(len(fed.public), fed.classes, device=fed.device))
        parts = (
            (k, Mean.of(Params(p=self.answer(fed, m.terms[0].value)))) for k, m in sent.items()
        )
        clients = fed.mean(parts, keep=nobody)["p"]
        number = len(fed.gather(dict.fromkeys(sent, 1)))
        teachers = self.draw(fed, sent, state, t)
        teach = lambda i: self.answer(fed, self.sample(fed, *teachers[i], t))  # noqa: E731
        answers = fed.spread(range(len(teachers)), teach)
        return fed.on_root(
            lambda: self.learn(fed, mean, clients, number, list(answers.values()), t)
        )

    def draw(
        self, fed: Federation, sent: dict[int, Mean], state: Params, t: int
    ) -> list[tuple[Params, Params, int]]:
        """Return the mean, the variance and the number of each model that is drawn; collective."""
        if self.posterior == "dirichlet":
            models = posterior.mixtures(fed, sent, state, self.alpha, t, self.samples)
            return [(model, model * 0, i) for i, model in enumerate(models)]
        of = {"gaussian": posterior.gaussian, "directions": posterior.directions}[self.posterior]
        mean, variance = of(fed, sent, state) if self.samples else (state, state * 0)
        return [(mean, variance, i) for i in range(self.samples)]

    def sample(self, fed: Federation, mean: Params, variance: Params, i: int, t: int) -> Params:
        """Return model i of round t, with the batch statistics of the public data."""
        scale = 0.0 if self.posterior == "dirichlet" else self.std_scale
        model = posterior.draw(fed, mean, variance, scale, t, i)
        return recalibrate(fed, fed.architectures[0], model, fed.public)

    def answer(self, fed: Federation, model: Params) -> Tensor:
        """Return a model's soft predictions on the public data, [N, C]."""
        module = fed.module(fed.architectures[0])
        for name, value in model.items():  # copied: memory layout affects bits
            module.view(name).copy_(value)
        return soften(outputs(fed, module.model.eval(), fed.public))

    def learn(
        self,
        fed: Federation,
        mean: Params,
        clients: Tensor,
        number: int,
        answers: list[Tensor],
        t: int,
    ) -> Params:
        """Train the mean model on the teachers' predictions and return it; the server's work.

        clients: mean soft prediction of the clients' models.
        number: number of the clients' models.
        answers: soft predictions of each drawn model.
        """
        total = number * clients.double() + self.answer(fed, mean)
        for answer in answers:
            total += answer
        target = sharpen(total / (number + 1 + len(answers)), self.sharpen).float()
        kind = fed.architectures[0]
        average = Average(parameters(fed.module(kind)), self.swa_start, self.swa_every)
        new = fit_targets(
            fed,
            kind,
            mean,
            Paired(fed.public, target),
            lambda logits, wanted: distil(wanted, logits),
            "ensemble",
            t,
            epochs=self.server_epochs,
            size=self.server_batch,
            lr=self.server_lr,
            momentum=self.server_momentum,
            watch=average if self.swa_every else None,
        )
        return recalibrate(fed, kind, new, fed.public) if average.models else new


def sharpen(p: Tensor, temperature: float) -> Tensor:
    """Return p^(1 / temperature), with each row normalised to sum 1, [n, C]."""
    powers = p.clamp(min=1e-8) ** (1 / temperature)
    return powers / powers.sum(1, keepdim=True)
