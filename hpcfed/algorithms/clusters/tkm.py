"""Robust(TKM): the server clusters the clients' models by K-means that is robust to outliers.

Ghosh et al., 2019, arXiv:1906.06629: every client trains to its own optimum, the server clusters
the models by trimmed K-means, and each cluster continues from its centre by robust optimisation. It
is a baseline of Long et al., World Wide Web 26, 2023, arXiv:2108.08647, whose code clusters anew in
each round and takes the coordinate-wise median (preset `authors`).

Objective: F_k(w)
Server: m_k <- argmin_m ||w_k - c_m||; c_m <- trimmed_(k: m_k = m) w_k
Round:
1. Each client of the cohort receives the centre of its cluster, trains it and sends the model.
2. In the first stage the server clusters the last models of all clients that have trained, by
   `iterations` steps of K-means with trimmed means.
3. The stage lasts until all clients have trained; then the clusters are fixed.
4. Afterwards each centre is the trimmed mean of the last models of its clients.

Deviations: the first stage is the job's local training. It lasts until all clients have trained,
and clusters may change in each of its rounds; afterwards they are fixed (later = 0). Trimming is by
coordinate. A cluster that loses all clients keeps its centre; in that code it becomes nan. The
first centres are the models of different clients; that code draws them with replacement.
"""

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt

from hpcfed import Federation, Guide, Params, rng
from hpcfed.algorithms import received
from hpcfed.algorithms.clusters import clusters, kmeans
from hpcfed.algorithms.clusters.centred import Centred, State
from hpcfed.config.conditions import Unused, above, field
from hpcfed.training.server import parameters


class TKM(Centred):
    """Clustered FL by robust K-means.

    With one cluster, trim = 0 and all clients it is FedAvg of equal weights. Rank 0 holds all
    clients' models at once.
    """

    guide = Guide(
        data="clusters of clients; some attack",
        sent="all weights",
        won="clusters with Byzantine clients",
    )

    unused: ClassVar[Unused] = {
        "weighting": "a robust centre gives all clients equal weights",
    }

    clusters: PositiveInt = 3
    """Number of clusters, M."""
    estimator: Literal["trimmed", "median"] = "trimmed"
    """A centre is the coordinate-wise trimmed mean of its clients' models, or their median."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = field(0.05, used_if={"estimator": "trimmed"})
    """Share of the smallest and of the largest values that the trimmed mean leaves out."""
    iterations: PositiveInt = field(8, used_if={"clusters": above(1)})
    """Iterations of K-means in each round until all clients have trained."""
    later: NonNegativeInt = field(0, used_if={"clusters": above(1)})
    """Iterations in each later round; 0: clusters are fixed, and their centres follow their
    clients.
    """

    def init(self, fed: Federation) -> State:
        centres = clusters.stack([fed.initial()] * self.clusters)
        return State(centres, torch.full((fed.K,), -1, device=fed.device))

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Any]]) -> State:
        mine = self.keep_received(fed, state, uploads)
        sent = fed.at_root({client.id: received.model(client) for client in mine})
        centres, cluster = fed.on_root(lambda: self.regroup(fed, state, sent))
        return State(centres, cluster)

    def regroup(
        self, fed: Federation, state: State, sent: dict[int, Params]
    ) -> tuple[Params, torch.Tensor]:
        """Return new centres and the cluster of each client; the server's work.

        sent: models of all clients that have trained.
        """
        counts = parameters(fed.module(fed.architectures[0]))
        points, ids, centres = clusters.stack(sent.values()), list(sent), state.centres
        share = 0.5 if self.estimator == "median" else self.trim
        settled = bool(state.cluster.ge(0).all())
        if settled and not self.later:
            members = state.cluster[ids].tolist()
            return kmeans.move(points, centres, members, share), state.cluster
        if state.cluster.ge(0).sum() < self.clusters:
            centres = self.first(fed, points, centres)
        iterations = self.later if settled else self.iterations
        centres, members = kmeans.lloyd(points, centres, counts, share, iterations)
        cluster = state.cluster.clone()
        cluster[ids] = torch.tensor(members, device=cluster.device)
        return centres, cluster

    def first(self, fed: Federation, points: Params, centres: Params) -> Params:
        """Set the centres to the models of different clients.

        If there are fewer clients than centres, the remaining centres stay as they are.
        """
        n = len(next(iter(points.values())))
        chosen = rng.stream(fed.seed, "centres").choice(n, min(n, self.clusters), replace=False)
        rows = torch.from_numpy(chosen)
        return Params(
            {
                name: torch.cat([points[name][rows.to(v.device)], v[len(rows) :]])
                for name, v in centres.items()
            }
        )
