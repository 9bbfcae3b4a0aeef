"""FeSEM-MA: FeSEM that matches the units of the models before it averages them.

Long et al., World Wide Web 26, 2023, arXiv:2108.08647, tables 2 and 3, with the matched averaging
of Wang et al. (FedMA), ICLR 2020, arXiv:2002.06440 (matching/permutation.py).

Objective: F_k(w) + lam ||w - c_m||^2
Server: m_k <- argmin_m ||w_k - c_m||; c_m <- mean_(k: m_k = m) P_k w_k
Round:
1. The server sends each client of the cohort the centre of its cluster.
2. The client trains on from there and sends its model.
3. Each client that has ever sent is assigned to the centre nearest to its last model.
4. The hidden units of each model are reordered by the Hungarian method, P_k, so that they agree
   best with the centre.
5. The mean of these models is the new centre; the models are matched to it again, up to `matchings`
   times.

Deviations: a centre has as many units as a client's model. The priors of PFNM and FedMA (sigma,
sigma_0 and gamma, 1 in the public code) determine how many more units it gets, and so have no
effect here. All layers are matched in one round; FedMA trains on after each layer. In that code
matching is not connected with the clusters, and the last layer is averaged by classes (head =
"classes", preset `authors`).
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt

from hpcfed import Client, Federation, Guide, Mean, Params, Upload
from hpcfed.algorithms import received
from hpcfed.algorithms.base import find_units
from hpcfed.algorithms.clusters import clusters
from hpcfed.algorithms.clusters.centred import State
from hpcfed.algorithms.clusters.em import EM
from hpcfed.algorithms.matching import permutation
from hpcfed.models.widths import Units
from hpcfed.training.server import parameters

HEAD = ("head.weight", "head.bias")


class FeSEMMA(EM):
    """FeSEM with matched averaging.

    Where no other order of units is nearer it is FeSEM, bit for bit.
    """

    guide = Guide(
        data="clusters of clients",
        sent="all weights",
        won="FEMNIST and CelebA, above FeSEM",
    )

    # because it matches the units of whole layers
    reads_head: ClassVar[bool] = True
    trains_parts: ClassVar[Any] = False

    matchings: PositiveInt = 8
    """Maximum number of times that the clients of a centre are matched to it in a round."""
    head: Literal["clients", "classes"] = "clients"
    """The last layer is averaged with the clients' weights, or row by row with their numbers of
    examples of that class, which they send.
    """

    @property
    def needs_classes(self) -> str:
        by_class = self.head == "classes"
        return "algorithm.head = 'classes' weighs rows by examples of a class" if by_class else ""

    def units(self, fed: Federation) -> Units:
        """Return the groups of units of the clients' model.

        Raises ConfigError if they are not known for this architecture.
        """
        return find_units(fed, "matches the units of models", "cnn or mlp for one, or fesem")

    def init(self, fed: Federation) -> State:
        self.units(fed)
        return super().init(fed)

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        upload = super().local(fed, client, state, t)
        if self.head == "clients":
            return upload
        counts = torch.as_tensor(fed.label_counts[client.id]).to(torch.int32)
        return Upload(**upload.parts, counts=counts, relative_to=upload.relative_to)

    def merge(
        self, fed: Federation, mine: list[Client], at: dict[int, int], centres: Params
    ) -> Params:
        units, counts = self.units(fed), parameters(fed.module(fed.architectures[0]))
        for _ in range(self.matchings):
            before = centres
            parts = ((c.id, self.align_part(fed, c, at[c.id], before, units, counts)) for c in mine)
            per: Literal["row", "value"] = "row" if self.head == "clients" else "value"
            centres = fed.mean(parts, keep=before, per=per)
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
        counts: permutation.Wanted,
    ) -> Mean:
        """Return a client's part in the mean of centre m, with its units in that centre's order."""
        model = permutation.align(received.model(client), clusters.row(centres, m), units, counts)
        (part,) = clusters.part(model, self.weight(client), m, centres).terms
        if self.head == "clients":
            return Mean((part,))
        weights = part.value.map(lambda v: torch.full_like(v, self.weight(client)))
        rows = client.recall("received counts").to(weights["head.bias"])
        for name in HEAD:  # [1, C, ...]
            weights[name] = rows.view(1, -1, *[1] * (weights[name].dim() - 2)).expand_as(
                weights[name]
            )
        return Mean.of(part.value, weights, part.at)
