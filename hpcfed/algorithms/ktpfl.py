"""KT-pFL: each client learns from a mixture of all predictions that is its own; the mixtures'
coefficients learn too.

Zhang et al., NeurIPS 2021, arXiv:2111.02862, algorithm 1. share = "weights" is "+weight" of Jang et
al., ICPP 2022, doi:10.1145/3545008.3545073, table 3. Deviations: a cohort mixes its own members
alone, their rows scaled to sum 1; rows are projected onto the simplex; the penalty's step never
overshoots; distil_lr is the objective's lambda. The authors' code has distance = "mse" for the
coefficients alone, softmax = true, a step that adapts to the gradient; in a round it first updates
the coefficients and distils, by the updated ones, and trains on own data afterwards. Here, as in
the paper's algorithm, clients train, then distil by the coefficients of the round before, which are
updated last.
"""

from functools import partial
from typing import Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from hpcfed.algorithms.base import RoundBased
from hpcfed.params import Params
from hpcfed.training import personal
from hpcfed.training.local import sgd


class KTpFL(RoundBased):
    """Without distillation it is Local, bit for bit. weighting has no effect."""

    share: Literal["predictions", "weights"] = "predictions"
    """Clients exchange soft predictions of public examples, or ("+weight", one architecture) their
    models.
    """
    public: PositiveInt = 3000
    """Public examples drawn for each round."""
    tau: PositiveFloat = 10.0
    """Temperature of the soft predictions."""
    distance: Literal["kl", "mse"] = "kl"
    """Distance of a client's predictions from its mixture: Kullback-Leibler divergence, or squared
    distance.
    """
    distil: NonNegativeInt = 1
    """Passes over the public examples in a round, or gradient steps towards the mixed models; 0:
    none.
    """
    distil_batch: PositiveInt = 256
    """Public examples in one step of distillation."""
    distil_lr: PositiveFloat | None = None
    """Learning rate of distillation; none: local.lr. With share = "weights", 0.5 goes all the way
    to the mixture.
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
    def accepts(self):
        return "any models" if self.share == "predictions" else "one architecture"

    @property
    def needs(self):
        return ("public",) if self.share == "predictions" else ()

    def shared(self, name):
        return False

    def traffic(self, fed, k):
        predictions = min(self.public, len(fed.public)) * fed.classes * 4
        return (predictions if self.share == "predictions" else fed.shapes(k=k).nbytes,) * 2

    def init(self, fed):
        if self.share == "weights":
            fed.start_alike()  # models are mixed that began alike
        return Params(
            coeff=torch.full((fed.K, fed.K), 1 / fed.K, dtype=torch.float64, device=fed.device)
        )

    def receive(self, client, state):
        """Nothing: clients keep their models."""

    def round(self, fed, state, cohort, t):
        epochs = min(t + 1, self.ramp) or None
        list(
            fed.turns(cohort, lambda c: sgd(fed, c, t, partial(self.loss, c, state), epochs=epochs))
        )
        rows, mass = personal.among(state["coeff"], cohort)
        if self.share == "predictions":
            how = {
                "public": self.public,
                "tau": self.tau,
                "distance": self.distance,
                "size": self.distil_batch,
            }
            gradient = personal.by_predictions(
                fed, cohort, rows, t, passes=self.distil, lr=self.distil_lr, **how
            )
        else:
            gradient = personal.by_weights(
                fed, cohort, rows, t, steps=self.distil, lr=self.distil_lr
            )
        new = fed.on_root(
            lambda: personal.improved(rows, gradient, self.coeff_lr, self.rho, self.softmax)
        )
        return Params(coeff=personal.put(state["coeff"], cohort, new, mass))
