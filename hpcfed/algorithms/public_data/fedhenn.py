"""FedHeNN: clients learn representations whose kernels, on examples that all of them see, are
alike.

Makhija et al., ICML 2022, arXiv:2202.07757, algorithms 1 and 2, eqs. 5 and 6; the examples (RAD)
are drawn anew each round. Homogeneous: FedAvg with a pull towards what the received model makes of
them, and at the end the mean of all clients' last models, the initial one of a client that never
took part. Heterogeneous: a pull towards the mean of all clients' kernels. Deviations: that eta
grows by the root of the round and that every step has the term, both open in the paper, are as in
the authors' code, where however the first round has eta = 0, the next sqrt(1), and so on; here they
have sqrt(1), sqrt(2), ... . The distance is 1 - CKA on centred columns. The RAD passes models in
eval mode, in the authors' code in train mode and augmented. There the mean runs over the kernels
that the models of the previous round's cohort have on this round's RAD (mean_over = "previous"),
the first round has none, and the last trains all clients.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed.algorithms.base import RoundBased, single_step
from hpcfed.algorithms.public_data import align, kernels
from hpcfed.core.params import Mean, Params

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation

PREVIOUS = "previous"  # in the state: whether each client was in the last round's cohort, [K]


class FedHeNN(RoundBased):
    """eta0 = 0 is FedAvg (homogeneous) or local training (heterogeneous), bit for bit."""

    needs: ClassVar[tuple[str, ...]] = ("public",)
    keeps_weights: ClassVar[bool | None] = True

    setting: Literal["heterogeneous", "homogeneous"] = "heterogeneous"
    """Any models and a mean of kernels, or one architecture and a mean of models."""
    eta0: NonNegativeFloat = 0.001
    """Weight of the distance in the first round; 0 switches it off."""
    schedule: Literal["sqrt", "constant", "linear"] = "sqrt"
    """How that weight grows with the round: by its root, not at all, or in proportion."""
    rad_size: PositiveInt = 5000
    """Public examples drawn each round; all where there are fewer."""
    align_every: PositiveInt = 1
    """The first of so many local steps has the term."""
    distance: Literal["cka", "procrustes"] = "cka"
    """Distance of representations; Procrustes in the homogeneous setting only."""
    kernel: Literal["linear", "rbf"] = "linear"
    """Kernel of the representations, for CKA."""
    bandwidth: PositiveFloat = 1.0
    """RBF kernel: its width as a multiple of the median distance of two representations."""
    mean_over: Literal["all", "cohort", "previous"] = "all"
    """Heterogeneous: whose kernels are averaged: all clients', the cohort's, or those of the cohort
    of the round before (authors' code), in the first round nobody's.
    """
    client_weights: Literal["uniform", "samples", "capacity"] = "uniform"
    """Heterogeneous: weight of a client's kernel: 1, its training examples, or its number of
    parameters.
    """
    kernel_norm: Literal["none", "frobenius"] = "none"
    """Heterogeneous: average kernels as they are, or each at length 1, so that none outweighs the
    others.
    """
    upload: Literal["model", "representations", "kernel"] = "model"
    """Heterogeneous: what is sent: models after training, or what the mean takes, by all in it,
    before.
    """

    @property
    def accepts(self) -> str:
        return "one architecture" if self.setting == "homogeneous" else "any models"

    def refuses(self, job: Job) -> dict[str, str]:
        found = super().refuses(job) | single_step(job)
        if self.setting == "homogeneous":
            names: tuple[str, ...] = ("mean_over", "client_weights", "kernel_norm", "upload")
            found |= {f"algorithm.{name}": "setting = 'homogeneous' has no mean" for name in names}
        else:
            found["algorithm.weighting"] = "models are not averaged; client_weights weights kernels"
        if self.kernel == "linear":
            found["algorithm.bandwidth"] = "a linear kernel has none"
        if self.distance == "procrustes":
            why = "distance = 'procrustes' has no kernel"
            found |= {"algorithm.kernel": why, "algorithm.bandwidth": why}
        if not self.eta0:
            names = ("schedule", "align_every", "distance", "kernel", "bandwidth", "mean_over")
            names += ("client_weights", "kernel_norm")
            found |= {f"algorithm.{name}": "eta0 = 0: there is no distance" for name in names}
        if self.distance == "procrustes" and self.setting == "heterogeneous":
            found["job"] = (
                "needs one width for Procrustes, but is heterogeneous; set "
                "algorithm.distance = 'cka'"
            )
        return found

    def shared(self, name: str) -> bool:
        return self.setting == "homogeneous"

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        return (
            super().traffic(fed, k)
            if self.setting == "homogeneous"
            else kernels.traffic(fed, k, self)
        )

    @property
    def looks_back(self) -> bool:
        """Whether the mean runs over the cohort of the round before."""
        return self.setting == "heterogeneous" and self.mean_over == "previous"

    def init(self, fed: Federation) -> Params:
        if self.looks_back:
            return Params({PREVIOUS: torch.zeros(fed.K, dtype=torch.bool, device=fed.device)})
        return super().init(fed)

    def offer(self, fed: Federation, client: Client, state: Params) -> Params:
        return state.pick(lambda name: name != PREVIOUS)

    def members(self, fed: Federation, state: Params, cohort: list[int]) -> list[int]:
        """The clients whose kernels are averaged."""
        if self.looks_back:
            return state[PREVIOUS].nonzero()[:, 0].tolist()
        return list(range(fed.K)) if self.mean_over == "all" else cohort

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        rad = fed.public.pick(fed.draw_public(t, self.rad_size))
        mean = kernels.mean_of_clients(fed, rad, cohort, self.members(fed, state, cohort), self)
        uploads = fed.stream(cohort, lambda client: self.train(fed, client, state, t, rad, mean))
        if self.looks_back:
            fed.mean(uploads, keep=Params())
            took_part = torch.zeros_like(state[PREVIOUS])
            took_part[cohort] = True
            return Params({PREVIOUS: took_part})
        return self.server(state, fed.mean(uploads, keep=state))

    def train(
        self,
        fed: Federation,
        client: Client,
        state: Params,
        t: int,
        rad: Shard,
        mean: Tensor | None,
    ) -> Mean:
        state = self.offer(fed, client, state)
        self.receive(client, fed.down(client, state))
        align.train(fed, client, partial(self.loss, client, state), t, rad, mean, self)
        if self.setting == "homogeneous":
            client.memory["trained"] = 1
        return Mean.of(client.params(self.shared), self.weight(client))

    def finish(self, fed: Federation, state: Params, t: int) -> Params | None:
        if self.setting == "heterogeneous":
            return None
        first, clients = fed.initial(), fed.mine(range(fed.K))
        last = (
            (c.id, Mean.of(c.params() if "trained" in c.memory else first, self.weight(c)))
            for c in clients
        )
        return fed.mean(last, keep=state, counted=False)
