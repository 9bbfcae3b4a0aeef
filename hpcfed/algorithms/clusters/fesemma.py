"""FeSEM-MA: FeSEM whose centres are means of models with their units matched.

Long et al., World Wide Web 26, 2023, arXiv:2108.08647, tables 2 and 3, with the
matched averaging of Wang et al. (FedMA), ICLR 2020, arXiv:2002.06440. In each cluster every model's
hidden units are put in the order in which they agree with the centre, by the Hungarian method; the
mean of these is the new centre, to which they are matched again (models/matching.py). Deviations: a
centre has as many units as a client's model, so that the priors of PFNM and FedMA (sigma, sigma_0
and gamma, 1 in the public code), which decide how many more it gets, have nothing to decide. All
layers are matched in one round; FedMA trains on after each. In that code matching is not connected
with the clusters, and the last layer is averaged by classes (head = "classes", preset `authors`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import PositiveInt

from hpcfed.algorithms.clusters import clusters
from hpcfed.algorithms.clusters.centred import State
from hpcfed.algorithms.clusters.em import EM
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params
from hpcfed.models import matching
from hpcfed.training.server import parameters

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation
    from hpcfed.models.widths import Units

HEAD = ("head.weight", "head.bias")


class FeSEMMA(EM):
    """Where no other order of units is nearer it is FeSEM, bit for bit."""

    # it matches the units of whole layers
    trains_parts: ClassVar[Any] = False

    matchings: PositiveInt = 8
    """Most times that the clients of a centre are matched to it in a round."""
    head: Literal["clients", "classes"] = "clients"
    """The last layer's mean is weighted as the others, or row by row by the clients' examples of
    that class, which they tell.
    """

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        down, up = super().traffic(fed, k)
        return down, up + (4 * fed.classes if self.head == "classes" else 0)

    def units(self, fed: Federation) -> Units:
        """The groups of units of the clients' model."""
        kind = fed.architectures[0]
        try:
            return fed.store.units(kind)
        except ConfigError as why:
            raise ConfigError(
                f"fesemma matches the units of models, but which units of {kind} belong together "
                f"is not known\n  take another model, cnn or mlp for one, or fesem"
            ) from why

    def init(self, fed: Federation) -> State:
        self.units(fed)
        return super().init(fed)

    def send(self, fed: Federation, client: Client, state: State, t: int) -> None:
        super().send(fed, client, state, t)
        if self.head == "classes":
            counts = torch.as_tensor(fed.label_counts[client.id])
            fed.up(client, counts.to(torch.int32))

    def merge(
        self, fed: Federation, mine: list[Client], at: dict[int, int], centres: Params
    ) -> Params:
        units, counts = self.units(fed), parameters(fed.module(fed.architectures[0]))
        for _ in range(self.matchings):
            before = centres
            parts = ((c.id, self.align_part(fed, c, at[c.id], before, units, counts)) for c in mine)
            per: Literal["row", "value"] = "row" if self.head == "clients" else "value"
            centres = fed.mean(parts, keep=before, per=per, counted=False)
            if all(torch.equal(v, before[name]) for name, v in centres.items()):
                break
        return centres

    def align_part(
        self,
        fed: Federation,
        client: Client,
        m: int,
        centres: Params,
        units: Units,
        counts: matching.Wanted,
    ) -> Mean:
        """A client's part in the mean of centre m: its model with its units in that centre's
        order.
        """
        model = matching.align(client.params(), clusters.row(centres, m), units, counts)
        (part,) = clusters.part(model, self.weight(client), m, centres).parts
        if self.head == "clients":
            return Mean((part,))
        weights = part.value.map(lambda v: torch.full_like(v, self.weight(client)))
        rows = torch.as_tensor(fed.label_counts[client.id]).to(weights["head.bias"])
        for name in HEAD:  # [1, C, ...]
            weights[name] = rows.view(1, -1, *[1] * (weights[name].dim() - 2)).expand_as(
                weights[name]
            )
        return Mean.of(part.value, weights, part.at)
