"""Peers: what methods without a server have in common, beside rounds or events."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import NonNegativeInt, PositiveInt

from hpcfed.algorithms.base import Share, single_step
from hpcfed.algorithms.decentralised.topology import Topology, graph
from hpcfed.config.parts import Part
from hpcfed.core.params import Mean, Params
from hpcfed.training import evaluate

if TYPE_CHECKING:
    import numpy as np

    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation


class Peers(Part):
    """A graph of clients, a common start, own models, their mean, and how far they are from it.

    A method inherits it before RoundBased or EventBased. Where a round is a single step, an
    optimiser of its own for each would make of Adam the gradient's sign and of momentum nothing: so
    it is kept, unless the job says otherwise.
    """

    topology: Topology = "ring"
    """Who are neighbours."""
    cliques: PositiveInt = 3
    """Clique-ring: how many cliques."""
    density: Share = 0.3
    """Erdos-renyi: probability of each link."""
    i1: NonNegativeInt = 0
    """Local steps that follow one another."""
    i2: PositiveInt = 1
    """Averaging steps that follow them."""

    keeps_weights: ClassVar[bool | None] = True
    local_defaults: ClassVar[dict[str, Any]] = {"keep_optimiser": True}

    def refuses(self, job: Job) -> dict[str, str]:
        found = super().refuses(job) | single_step(job)  # type: ignore[misc]  # a method's
        if self.topology != "clique-ring":
            found["algorithm.cliques"] = f"topology = {self.topology!r} has none"
        if self.topology != "erdos-renyi":
            found["algorithm.density"] = f"the links of topology = {self.topology!r} are given"
        if not self.i1:
            found["algorithm.i2"] = "i1 = 0: every step is one with averaging"
        return found

    def averages(self, number: int) -> bool:
        """Whether the step of this number, from 0, is one with averaging."""
        return number % (self.i1 + self.i2) >= self.i1

    def of(self, fed: Federation) -> tuple:
        """What determines the graph."""
        return self.topology, fed.K, fed.seed, self.cliques, self.density

    def links(self, fed: Federation) -> np.ndarray:
        """The graph: [K, K], symmetric."""
        return graph(*self.of(fed))

    def init(self, fed: Federation) -> Params:
        """Give all clients the same initial weights, those of client 0. The server's state holds
        nothing.
        """
        fed.start_alike()
        return Params()

    def receive(self, client: Client, state: Params) -> None:
        """Nothing comes from a server: the client keeps its model."""

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        """Consensus distance: root of the mean over clients of the squared distance to the mean
        model; collective. With evaluate.common the accuracy of that mean model too.

        Over parameters and buffers. Kong et al., ICML 2021, arXiv:2102.04828.
        """
        mean, mine = consensus(fed), {}
        for client in fed.mine(range(fed.K)):
            mine[client.id] = sum(
                float(d.double().square().sum()) for d in (client.params() - mean).values()
            )
        found = {"consensus_distance": math.sqrt(sum(fed.gather(mine).values()) / fed.K)}
        if fed.job.evaluate.common:
            pooled = fed.pooled()
            pooled.load(mean)
            found["accuracy_common"] = evaluate.common(fed, pooled.model)
        return found


def consensus(fed: Federation) -> Params:
    """The plain mean of all clients' models, buffers too; collective, counted as no traffic."""
    uploads = ((c.id, Mean.of(c.params())) for c in fed.mine(range(fed.K)))
    return fed.mean(uploads, keep=fed.initial(), counted=False)
