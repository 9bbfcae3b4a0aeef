"""Stochastic expectation maximisation over clients and centres, shared by FeSEM and FeSEM-MA.

Long et al., World Wide Web 26, 2023, arXiv:2108.08647, algorithm 1.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Model, Params
from hpcfed.algorithms import received
from hpcfed.algorithms.clusters import clusters
from hpcfed.algorithms.clusters.centred import Centred, State
from hpcfed.config.conditions import above, field
from hpcfed.training.losses import proximal


class EM(Centred):
    """A method that alternates between assigning clients to centres and updating the centres.

    Each client trains on from its centre. It is then assigned to the nearest centre (E), and each
    centre becomes the mean of its clients (M).
    """

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in its centre: its number of training examples, or 1."""
    clusters: PositiveInt = 3
    """Number of centres, M."""
    scope: Literal["all", "head"] = field("all", used_if={"clusters": above(1)})
    """Distances are over all parameters, or only over the last layer's weight matrix."""
    start: Literal["k-means++", "clients"] = field("k-means++", used_if={"clusters": above(1)})
    """First centres: models of clients that are far from one another, or of any different clients.
    """
    empty: Literal["keep", "farthest"] = field("keep", used_if={"clusters": above(1)})
    """A centre without clients stays as it is, or moves to the client that is farthest from its own
    centre.
    """
    lam: NonNegativeFloat = 0.0
    """Weight of the squared distance to the centre in the local objective."""

    @property
    def reads_head(self) -> bool:
        """Whether clusters are found by the head."""
        return self.scope == "head"

    def init(self, fed: Federation) -> State:
        centres = clusters.stack([fed.initial()] * self.clusters)
        return State(centres, torch.full((fed.K,), -1, device=fed.device))

    def counts(self, fed: Federation) -> Callable[[str], bool]:
        """Return a function that tells whether a tensor counts in distances; statistics do not."""
        return fed.trainable if self.scope == "all" else "head.weight".__eq__

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        value = super().loss(client, state, model, x, y)
        return value + proximal(model, anchor=state, mu=2 * self.lam) if self.lam else value

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Any]]) -> State:
        mine = self.keep_received(fed, state, uploads)
        centres = state.centres
        if state.cluster.ge(0).sum() < self.clusters:
            centres = clusters.seeds(
                fed, mine, centres, self.counts(fed), self.start == "k-means++"
            )
        return self.em_step(fed, mine, centres)

    def em_step(self, fed: Federation, mine: list[Client], centres: Params) -> State:
        """Assign each client to its nearest centre (E), then average each centre's clients (M)."""
        choices = fed.gather(
            {c.id: clusters.nearest(received.model(c), centres, self.counts(fed)) for c in mine}
        )
        at = clusters.reseed(choices, self.clusters if self.empty == "farthest" else 0)
        cluster = torch.tensor([at.get(k, -1) for k in range(fed.K)], device=fed.device)
        return State(self.merge(fed, mine, at, centres), cluster)

    def merge(
        self, fed: Federation, mine: list[Client], at: dict[int, int], centres: Params
    ) -> Params:
        """Return the means of the clients' models of each centre; collective.

        at: the cluster of each client.
        """
        models = ((c, received.model(c)) for c in mine)
        parts = ((c.id, clusters.part(v, self.weight(c), at[c.id], centres)) for c, v in models)
        return fed.mean(parts, keep=centres, per="row")
