"""CFL (also FedCluster): a cluster is split in two where the updates of its clients disagree.

Sattler et al., IEEE TNNLS 32(8), 2021, arXiv:1910.01991. All clients begin in one cluster.
rule = "gap" is the other test of that paper, as in the code of Long et al., arXiv:2108.08647: a
cluster is split if sqrt((1 - s) / 2) >= gamma for the largest similarity s across the split. That
code has linkage = "average", scope = "head", after = 30 and every = 30, and does not train a
cluster further once a test has left it whole; here it is trained and tested on.

Objective: F_k(w_m)
Server: w_m <- w_m + sum_(k in m) p_k (w_k - w_m) / sum_(k in m) p_k
Round:
1. The server sends each client the model of its cluster.
2. The client trains it and sends it; w_k - w_m is its update.
3. The server steps each cluster along the mean update of its clients in the cohort.
4. From round `after` on it tests a cluster when all its clients have trained: is their mean update
   shorter than eps1, and that of one of them longer than eps2?
5. It splits such a cluster in two by the cosines of its clients' updates.

Deviations: in the paper all clients take part in each round. Here a cluster is tested when all of
its clients have trained since its last test, or since it began, and by their last updates; the mean
update is the mean of these. The authors' code weighs clients equally (preset `authors`) and decays
the learning rate. The cosine with a zero update is 0.
"""

import math
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from hpcfed import Client, Federation, Guide, Job, Mean, Params, Share
from hpcfed.algorithms.base import warn_of_short_run
from hpcfed.algorithms.clusters import clusters
from hpcfed.algorithms.clusters.centred import Centred, State
from hpcfed.config.conditions import at_most, below, field

# clusters are split
SPLITS = {"after": below("rounds"), "min_size": at_most("clients")}


class CFL(Centred):
    """Clustered FL by recursive splits; before the first split it is FedAvg, bit for bit.

    A client's last update since its cluster was tested is in its memory, as `update`.
    """

    guide = Guide(
        data="clusters of clients",
        sent="all weights",
        won="clients whose labels contradict one another",
    )

    keeps_weights: ClassVar[bool | None] = False

    rule: Literal["norms", "gap"] = field("norms", used_if=SPLITS)
    """A cluster is split by the lengths of its updates, or where similarities across the split are
    small.
    """
    eps1: NonNegativeFloat = field(0.4, used_if={**SPLITS, "rule": "norms"})
    """norms: a cluster is split only if its mean update is shorter than this."""
    eps2: NonNegativeFloat = field(1.6, used_if={**SPLITS, "rule": "norms"})
    """norms: a cluster is split only if the update of one of its clients is longer than this."""
    gamma: Share = field(0.5, used_if={**SPLITS, "rule": "gap"})
    """gap: least sqrt((1 - s) / 2), where s is the largest similarity across the split; neither
    source gives a value.
    """
    linkage: Literal["complete", "average"] = field("complete", used_if=SPLITS)
    """Similarity of two groups when they are joined: that of their least similar pair, or the
    average.
    """
    scope: Literal["all", "head"] = field("all", used_if=SPLITS)
    """Updates are compared in all parameters, or only in the last layer's weight matrix."""
    after: NonNegativeInt = field(20, used_if=SPLITS)
    """Rounds before the first in which a cluster may be split."""
    every: PositiveInt = field(1, used_if=SPLITS)
    """Rounds from one in which clusters may be split to the next."""
    min_size: Annotated[int, Field(ge=2)] = field(3, used_if=SPLITS)
    """Clusters of fewer clients are not split."""

    @property
    def reads_head(self) -> bool:
        """Whether clusters are found by the head."""
        return self.scope == "head"

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if self.after < job.rounds <= self.after + self.every:
            reasons["algorithm.every"] = (
                f"after = {self.after}, and there are {job.rounds} rounds: clusters are tested once"
            )
        return reasons

    def init(self, fed: Federation) -> State:
        warn_of_short_run(fed, "after", "no cluster is split")
        one = torch.zeros(fed.K, dtype=torch.int64, device=fed.device)
        return State(clusters.stack([fed.initial()]), one)

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        return {"clusters": float(len(next(iter(state.centres.values()))))}

    def counts(self, fed: Federation, name: str) -> bool:
        """Return whether this tensor counts in comparisons of updates; statistics do not."""
        if self.scope == "head":
            return name == "head.weight"
        return fed.trainable(name)

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Any]]) -> Params:
        """Return the centres; the clients' updates go to their memories."""
        parts = []
        for k, sent in uploads:
            client, m = fed.clients[k], int(state.cluster[k])
            update = sent["model"] - clusters.row(state.centres, m)
            client.memory["update"] = update.pick(lambda name: self.counts(fed, name))
            parts.append((k, clusters.part(sent["model"], self.weight(client), m, state.centres)))
        return fed.mean(parts, keep=state.centres, per="row")

    def server(self, fed: Federation, state: State, mean: Params, cohort: list[int]) -> State:
        new = State(mean, state.cluster)
        tests = fed.t >= self.after and (fed.t - self.after) % self.every == 0
        return self.split(fed, new) if tests else new

    def split(self, fed: Federation, state: State) -> State:
        """Split the clusters that meet the rule; collective.

        The part with the cluster's first client keeps its number, the other part becomes a new
        cluster.
        """
        stored = (c for c in fed.mine(range(fed.K)) if c.id in fed.store)
        mine = [c for c in stored if "update" in c.memory]
        lengths = fed.gather({c.id: length(c.memory["update"]) for c in mine})
        keep = state.centres.pick(lambda name: self.counts(fed, name)) * 0
        parts = ((c.id, self.part_of_update(c, state, keep)) for c in mine)
        mean = fed.mean(parts, keep=keep, per="row")
        cluster, rows = state.cluster.clone(), [*range(len(next(iter(state.centres.values()))))]
        for m in tuple(rows):
            members = (state.cluster == m).nonzero()[:, 0].tolist()
            if len(members) < self.min_size or not lengths.keys() >= set(members):
                continue
            members_here = [c for c in mine if c.id in members]
            longest = max(lengths[k] for k in members)
            if self.rule == "gap" or self.disagree(length(clusters.row(mean, m)), longest):
                alike = similarities(fed, members_here, members)
                part, other = bipartition(alike, self.linkage)
                if self.rule == "norms" or gap(alike, part, other) >= self.gamma:
                    cluster[[members[i] for i in other]] = len(rows)
                    rows.append(m)
            for client in members_here:
                client.memory.pop("update")
        return State(state.centres.map(lambda v: v[rows]), cluster)

    def part_of_update(self, client: Client, state: State, like: Params) -> Mean:
        """Return a client's part in the mean of its cluster's last updates.

        like: tensors of all clusters' updates.
        """
        m, update = int(state.cluster[client.id]), Params(client.memory["update"])
        return clusters.part(update, self.weight(client), m, like)

    def disagree(self, mean: float, longest: float) -> bool:
        """Return whether updates of these lengths call for a split by `norms`."""
        return mean < self.eps1 and longest > self.eps2


def length(update: Params) -> float:
    """Return the Euclidean norm of an update."""
    return math.sqrt(product(update, update))


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
    gram = np.array([row for _, row in sorted(fed.gather(products).items())])  # [n, n]
    # as computed by the owner of each pair's first client
    gram = np.triu(gram) + np.triu(gram, 1).T
    below = np.sqrt(np.outer(gram.diagonal(), gram.diagonal()))
    return np.divide(gram, below, out=np.zeros_like(gram), where=below > 0)


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


def gap(alike: np.ndarray, part: list[int], other: list[int]) -> float:
    """Return sqrt((1 - s) / 2), where s is the largest similarity between the groups."""
    return math.sqrt(max(0.0, 1 - float(alike[np.ix_(part, other)].max())) / 2)
