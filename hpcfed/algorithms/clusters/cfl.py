"""CFL (also FedCluster): a cluster is split in two where the updates of its clients disagree.

Sattler et al., IEEE TNNLS 32(8), 2021, arXiv:1910.01991. All clients begin in one cluster. A
cluster is split if its mean update is short while the update of one of its clients is long. It is
split by the cosine similarity of its clients' updates, and both parts go on separately. rule =
"gap" is the other test of that paper, as in the code of Long et al., arXiv:2108.08647: a cluster is
split where sqrt((1 - s) / 2) >= gamma for the largest similarity s across the split. That code has
linkage = "average", scope = "head", after = 30.

Deviations: in the paper all clients take part in each round. Here the update of a client that is
not in the cohort is its last one, and a cluster is not split before all of its clients have one;
the mean update is the distance by which the centre moved. The authors' code weighs clients equally
(preset `authors`) and decays the learning rate. The cosine with a zero update is 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt

from hpcfed.algorithms.base import Guide, Share, single_step
from hpcfed.algorithms.clusters import clusters
from hpcfed.algorithms.clusters.centred import Centred, State
from hpcfed.core.params import Mean, Params

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation


class CFL(Centred):
    """Clustered FL by recursive splits; before the first split it is FedAvg, bit for bit.

    A client's last update is in its memory, as `update`.
    """

    guide = Guide(
        data="clusters of clients",
        sent="all weights",
        won="clients whose labels contradict one another",
    )

    keeps_weights: ClassVar[bool | None] = False

    rule: Literal["norms", "gap"] = "norms"
    """A cluster is split by the lengths of its updates, or where similarities across the split are
    small.
    """
    eps1: NonNegativeFloat = 0.4
    """norms: a cluster is split only if its mean update is shorter than this."""
    eps2: NonNegativeFloat = 1.6
    """norms: a cluster is split only if the update of one of its clients is longer than this."""
    gamma: Share = 0.5
    """gap: least sqrt((1 - s) / 2), where s is the largest similarity across the split; neither
    source gives a value.
    """
    linkage: Literal["complete", "average"] = "complete"
    """Similarity of two groups when they are joined: that of their least similar pair, or the
    average.
    """
    scope: Literal["all", "head"] = "all"
    """Updates are compared in all parameters, or in the last layer's weight matrix alone."""
    after: NonNegativeInt = 20
    """Rounds before the first in which a cluster may be split."""

    @property
    def reads_head(self) -> bool:
        """Whether clusters are found by the head."""
        return self.scope == "head"

    def refuses(self, job: Job) -> dict[str, str]:
        found = super().refuses(job) | single_step(job)
        idle = ("gamma",) if self.rule == "norms" else ("eps1", "eps2")
        found |= {f"algorithm.{name}": f"rule = {self.rule!r} does not use it" for name in idle}
        if self.after >= job.rounds:
            why = f"after = {self.after}, and there are {job.rounds} rounds: no cluster is split"
            names = ("after", "rule", "eps1", "eps2", "gamma", "linkage", "scope")
            found |= {f"algorithm.{name}": why for name in names}
        return found

    def init(self, fed: Federation) -> State:
        one = torch.zeros(fed.K, dtype=torch.int64, device=fed.device)
        return State(clusters.stack([fed.initial()]), one)

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        return {"clusters": float(len(next(iter(state.centres.values()))))}

    def counts(self, fed: Federation, name: str) -> bool:
        """Return whether this tensor counts in comparisons of updates; statistics do not."""
        if self.scope == "head":
            return name == "head.weight"
        return name in fed.store.layout(fed.architectures[0]).params

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Mean:
        m = int(state.cluster[client.id])
        (sent,) = super().local(fed, client, state, t).terms
        update = sent.value - clusters.row(state.centres, m)
        client.memory["update"] = update.pick(lambda name: self.counts(fed, name))
        return clusters.part(sent.value, float(sent.weight), m, state.centres)

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        uploads = fed.stream(cohort, lambda client: self.local(fed, client, state, t))
        centres = fed.mean(uploads, keep=state.centres, per="row")
        moved = (centres - state.centres).pick(lambda name: self.counts(fed, name))
        new = State(centres, state.cluster)
        return self.split(fed, new, moved) if t >= self.after else new

    def split(self, fed: Federation, state: State, moved: Params) -> State:
        """Split the clusters that meet the rule; collective.

        The part with the cluster's first client keeps its number, the other part becomes a new
        cluster.
        moved: change of each centre in this round.
        """
        held = (c for c in fed.mine(range(fed.K)) if c.id in fed.store)
        mine = [c for c in held if "update" in c.memory]
        lengths = fed.gather(
            {c.id: math.sqrt(product(c.memory["update"], c.memory["update"])) for c in mine}
        )
        cluster, rows = state.cluster.clone(), [*range(len(next(iter(state.centres.values()))))]
        for m in tuple(rows):
            members = (state.cluster == m).nonzero()[:, 0].tolist()
            mean = clusters.row(moved, m)
            length = math.sqrt(product(mean, mean))
            if not self.ready(members, lengths, length):
                continue
            alike = similarities(fed, [c for c in mine if c.id in members], members)
            first, second = bipartition(alike, self.linkage)
            if self.rule == "gap" and gap(alike, first, second) < self.gamma:
                continue
            cluster[[members[i] for i in second]] = len(rows)
            rows.append(m)
        return State(state.centres.map(lambda v: v[rows]), cluster)

    def ready(self, members: list[int], lengths: dict[int, float], mean: float) -> bool:
        """Return whether a cluster of these clients may be split.

        lengths: norms of the clients' last updates, by client.
        mean: norm of the cluster's mean update.
        """
        if len(members) <= 2 or not lengths.keys() >= set(members):
            return False
        if self.rule == "gap":
            return True
        return mean < self.eps1 and max(lengths[k] for k in members) > self.eps2


def product(a: Params, b: Params) -> float:
    """Return the scalar product over all tensors, in float64."""
    return sum(float((v.double() * b[name].double()).sum()) for name, v in a.items())


def similarities(fed: Federation, mine: list[Client], members: list[int]) -> np.ndarray:
    """Return the cosine similarities of these clients' updates, [n, n], on all ranks; collective.

    mine: those of the clients that are this rank's.
    The similarity with a zero update is 0.
    """
    products: dict[int, list[float]] = {c.id: [] for c in mine}
    for _, update in fed.each({c.id: c.memory["update"] for c in mine}):
        for c in mine:
            products[c.id].append(product(c.memory["update"], update))
    whole = np.array([row for _, row in sorted(fed.gather(products).items())])  # [n, n]
    whole = (
        np.triu(whole) + np.triu(whole, 1).T
    )  # as computed by the owner of each pair's first client
    below = np.sqrt(np.outer(whole.diagonal(), whole.diagonal()))
    return np.divide(whole, below, out=np.zeros_like(whole), where=below > 0)


def bipartition(
    alike: np.ndarray, linkage: Literal["complete", "average"]
) -> tuple[list[int], list[int]]:
    """Divide items into two groups by agglomerative clustering.

    Returns ascending positions; the first group has position 0.
    alike: similarities, [n, n].
    """
    from scipy.cluster.hierarchy import linkage as join  # here, because importing it takes time
    from scipy.cluster.hierarchy import to_tree
    from scipy.spatial.distance import squareform

    apart = np.clip(1 - alike, 0, 2)
    np.fill_diagonal(apart, 0)
    tree = to_tree(join(squareform(apart, checks=False), linkage))
    groups = sorted(sorted(side.pre_order()) for side in (tree.left, tree.right))
    return groups[0], groups[1]


def gap(alike: np.ndarray, first: list[int], second: list[int]) -> float:
    """Return sqrt((1 - s) / 2), where s is the largest similarity between the groups."""
    return math.sqrt(max(0.0, 1 - float(alike[np.ix_(first, second)].max())) / 2)
