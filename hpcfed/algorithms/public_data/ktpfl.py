"""KT-pFL: each client learns from a mixture of all predictions that is its own; the mixtures'
coefficients learn too.

Zhang et al., NeurIPS 2021, arXiv:2111.02862, algorithm 1. share = "weights" is "+weight" of Jang et
al., ICPP 2022, doi:10.1145/3545008.3545073, table 3. Deviations: a cohort mixes its own members
alone, their rows scaled to sum 1; rows are projected onto the simplex; the penalty's step never
overshoots; distil_lr is the objective's lambda. Preset "authors" has what their code has:
coeff_distance = "mse" for the coefficients alone, softmax = true; but not its step, which adapts to
the gradient, nor its order: in a round it first updates the coefficients and distils, by the
updated ones, and trains on own data afterwards. Here, as in the paper's algorithm, clients train,
then distil by the coefficients of the round before, which are updated last.
With share = "weights" no source says how far clients go: all the way to their mixtures by default.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from hpcfed.algorithms.base import RoundBased, single_step
from hpcfed.algorithms.public_data import personal
from hpcfed.core.params import Params
from hpcfed.training.local import sgd

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation

WHOLE = 0.5  # learning rate whose one step down ||w - theta||^2 ends at theta


class KTpFL(RoundBased):
    """Without distillation it is Local, bit for bit."""

    share: Literal["predictions", "weights"] = "predictions"
    """Clients exchange soft predictions of public examples, or ("+weight", one architecture) their
    models.
    """
    public: PositiveInt = 3000
    """Public examples drawn for each round."""
    tau: PositiveFloat = 10.0
    """Temperature of the soft predictions."""
    distance: Literal["kl", "mse"] = "kl"
    """Distillation: distance of a client's predictions from its mixture, Kullback-Leibler
    divergence or squared distance.
    """
    coeff_distance: Literal["kl", "mse"] | None = None
    """The same distance where the coefficients learn; none: that of the distillation."""
    distil: NonNegativeInt = 1
    """Passes over the public examples in a round, or gradient steps towards the mixed models; 0:
    none.
    """
    distil_batch: PositiveInt = 256
    """Public examples in one step of distillation."""
    distil_lr: PositiveFloat | None = None
    """Learning rate of distillation; none: local.lr, and with share = "weights" 0.5, which goes all
    the way to the mixture.
    """
    rho: NonNegativeFloat = 0.7
    """Weight of the penalty that draws the coefficients towards equal ones."""
    coeff_lr: NonNegativeFloat = 0.01
    """Learning rate of the coefficients."""
    softmax: bool = False
    """Rows of coefficients become softmax(5 c) instead of the nearest point of the simplex."""
    ramp: NonNegativeInt = 0
    """Local epochs are 1 in the first round, 2 in the next, up to so many; 0: local.epochs."""

    @property
    def accepts(self) -> str:
        return "any models" if self.share == "predictions" else "one architecture"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("public",) if self.share == "predictions" else ()

    def refuses(self, job: Job) -> dict[str, str]:
        found = super().refuses(job)
        found["algorithm.weighting"] = "the coefficients are the weights"
        if self.share == "weights":
            names: tuple[str, ...] = ("public", "tau", "distance", "coeff_distance", "distil_batch")
            found |= {f"algorithm.{name}": "models are mixed, not predictions" for name in names}
            if self.distil > 1 and self.distil_lr in (None, WHOLE):
                found["algorithm.distil"] = "the first step goes all the way to the mixture"
        if not self.distil:
            names = ("distil_lr", "distil_batch") + (("distance",) if self.coeff_distance else ())
            found |= {f"algorithm.{name}": "distil = 0: nothing is distilled" for name in names}
        if not self.coeff_lr:
            names = ("rho", "coeff_distance")
            found |= {f"algorithm.{name}": "coeff_lr = 0: they do not learn" for name in names}
        if self.ramp:
            why = "algorithm.ramp stands instead of it"
            found |= {"local.epochs": why, "local.steps": why}
        elif self.share == "weights" or not self.distil:  # else distillation has more steps
            found |= single_step(job)
        return found

    def shared(self, name: str) -> bool:
        return False

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        predictions = min(self.public, len(fed.public)) * fed.classes * 4
        return (predictions if self.share == "predictions" else fed.shapes(k=k).nbytes,) * 2

    def init(self, fed: Federation) -> Params:
        if self.share == "weights":
            fed.start_alike()  # models are mixed that began alike
        return Params(
            coeff=torch.full((fed.K, fed.K), 1 / fed.K, dtype=torch.float64, device=fed.device)
        )

    def receive(self, client: Client, state: Params) -> None:
        """Nothing: clients keep their models."""

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        epochs = min(t + 1, self.ramp) or None
        fed.run(cohort, lambda c: sgd(fed, c, t, partial(self.loss, c, state), epochs=epochs))
        rows, mass = personal.among(state["coeff"], cohort)
        if self.share == "predictions":
            how: dict[str, Any] = {
                "public": self.public,
                "tau": self.tau,
                "distance": self.distance,
                "coeff_distance": self.coeff_distance or self.distance,
                "size": self.distil_batch,
            }
            gradient = personal.by_predictions(
                fed, cohort, rows, t, passes=self.distil, lr=self.distil_lr, **how
            )
        else:
            gradient = personal.by_weights(
                fed, cohort, rows, t, steps=self.distil, lr=self.distil_lr or WHOLE
            )
        new = fed.on_root(
            lambda: personal.update_coefficients(
                rows, gradient, self.coeff_lr, self.rho, self.softmax
            )
        )
        return Params(coeff=personal.put(state["coeff"], cohort, new, mass))
