"""FedSAM: FedAvg whose clients seek flat minima, by gradients where one step of ascent leads.

Qu et al. (Generalized Federated Learning via Sharpness Aware Minimization), ICML 2022,
arXiv:2206.02618, algorithm 1; Caldarola et al. (Improving Generalization in Federated Learning by
Seeking Flat Minima), ECCV 2022, arXiv:2203.11834, who add stochastic weight averaging (SWA) at the
server. g is the gradient of the same batch.

Objective: F_k(w + rho g / ||g||), g = grad F_k(w)
Server: w <- sum_k p_k w_k
Round:
1. The server sends its model to the cohort.
2. In each step a client goes rho up the gradient of its batch, and computes the gradient there.
3. It steps down this gradient from where it was before the ascent.
4. It sends its model, and the server takes the weighted mean.
5. With average_every the run ends with the mean of the server's models of the later rounds.

Deviations: for its gradient the step of ascent is a constant, as in both papers. Weight decay is no
part of it. Running statistics of batch normalisation follow the first pass of a step; in the code
of the second paper, both. The learning rate has no cycles of average_every rounds. SWA averages
float buffers of batch normalisation, too. The training loss is that after the ascent.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Job, Params, RoundBased, Share
from hpcfed.algorithms.global_model.iterates import add_iterate
from hpcfed.config.conditions import field
from hpcfed.training.losses import at_ascent


@dataclass(frozen=True)
class State:
    """State of the server: its model, and the mean of its models of several rounds.

    x: the model.
    mean: the mean, of n models; the first model while n = 0.
    n: number of models in the mean, a scalar.
    """

    x: Params
    mean: Params
    n: Tensor


class FedSAM(RoundBased):
    """With rho = 0 it is FedAvg, bit for bit."""

    guide = Guide(
        data="different labels",
        sent="all weights",
        won="above FedAvg and SCAFFOLD on images with few classes per client",
    )

    rho: NonNegativeFloat = 0.1
    """Length of the step of ascent."""
    average_every: NonNegativeInt = 0
    """SWA: rounds from one averaged model to the next; 0: the run ends with its last model."""
    average_from: Share = field(0.75, used_if="average_every")
    """SWA: share of the rounds before those whose models are averaged."""

    @property
    def step_passes(self) -> int:
        return 2 if self.rho else 1

    @property
    def uses_rounds(self) -> bool:
        return self.average_every > 0

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if self.average_every and self.first_round(job) >= job.rounds:
            reasons["job"] = (
                f"needs more than {self.first_round(job)} rounds to average models, but the job "
                f"has {job.rounds}; set algorithm.average_every or algorithm.average_from lower"
            )
        return reasons

    def first_round(self, job: Job) -> int:
        """Return the first round, counted from 0, whose model SWA averages."""
        return int(self.average_from * job.rounds) + self.average_every - 1

    def init(self, fed: Federation) -> State:
        x = fed.initial()
        return State(x, x, torch.zeros((), dtype=torch.int64, device=fed.device))

    def model(self, state: State) -> Params:
        return state.x

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Any) -> Tensor:
        return at_ascent(partial(super().loss, client, state), model, x, y, self.rho)

    def server(self, fed: Federation, state: State, mean: Params, cohort: list[int]) -> State:
        since = fed.t - self.first_round(fed.job)
        if not self.average_every or since < 0 or since % self.average_every:
            return State(mean, state.mean, state.n)
        return State(mean, add_iterate(state.mean, mean, int(state.n)), state.n + 1)

    def finish(self, fed: Federation, state: State, t: int) -> State | None:
        return State(state.mean, state.mean, state.n) if state.n else None
