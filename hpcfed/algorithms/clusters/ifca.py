"""IFCA (also HypCluster): each client trains the one of several models that fits its examples best.

Ghosh et al., NeurIPS 2020, arXiv:2006.04088, algorithm 1; Mansour et al., 2020, arXiv:2002.10619,
section 4.

Objective: min_m F_k(w_m)
Server: w_m <- sum_(k in m) p_k w_k / sum_(k in m) p_k
Round:
1. The server sends the models of all clusters to the cohort.
2. Each client chooses the one with the smallest loss on its examples.
3. It trains this model, or takes one step down the gradient (averaging = "gradients").
4. It sends the model and the number of its cluster.
5. The server takes the weighted mean of each cluster; one that nobody chose stays as it is.

Deviations: a cluster's mean is over its members in the cohort and weighted by examples. This holds
for gradients too; the paper divides their sum by the number of all clients in the cohort.
"""

from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Upload, rng
from hpcfed.algorithms.base import PLAIN_GRADIENT
from hpcfed.algorithms.clusters import clusters
from hpcfed.config.conditions import Unused, above, field, other_than, unless
from hpcfed.models.model import in_head
from hpcfed.training.local import gradient, learning_rate


class IFCA(RoundBased):
    """Clustered FL by smallest loss; with one cluster it is FedAvg, bit for bit.

    A client's cluster is in its memory, as `cluster`.
    """

    guide = Guide(
        data="clusters of clients",
        sent="all centres down, one model up",
        won="rotated images and other clusters, above FedAvg and training alone",
    )

    clusters: PositiveInt = 3
    """Number of clusters, M; every client of a cohort downloads all their models."""
    averaging: Literal["models", "gradients"] = "models"
    """Clients train locally and send models, or take one step of local.lr down the gradient over
    all their examples.
    """
    share_body: bool = field(False, used_if={"clusters": above(1)})
    """Clusters differ only in their heads; one common body is averaged over all clients."""
    start: Literal["random", "perturbed"] = field("random", used_if={"clusters": above(1)})
    """Models start from different random weights, or all but the first start from the first one
    plus noise.
    """
    sigma: NonNegativeFloat = field(0.01, used_if={"start": other_than("random")})
    """Perturbed: standard deviation of the noise."""

    keeps_weights: ClassVar[bool | None] = False
    unused: ClassVar[Unused] = {
        name: unless({"averaging": "models"}, why) for name, why in PLAIN_GRADIENT.items()
    }

    @property
    def local_defaults(self) -> dict[str, Any]:
        return {"optimiser": "sgd", "lr": 0.1} if self.averaging == "gradients" else {}

    @property
    def reads_head(self) -> bool:
        """Whether only heads differ between clusters."""
        return self.share_body

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        return {}  # there are several models, none of which is for all clients

    def init(self, fed: Federation) -> Params:
        return clusters.stack((self.first(fed, m) for m in range(self.clusters)), self.of_cluster)

    def of_cluster(self, name: str) -> bool:
        """Return whether each cluster has its own tensor of this name."""
        return not self.share_body or in_head(name)

    def first(self, fed: Federation, m: int) -> Params:
        """Return the initial model of cluster m."""
        if self.start == "random" or m == 0:
            return fed.initial(k=m, architecture=fed.architectures[0])
        g = rng.torch_stream(fed.seed, "cluster", m)
        trained = fed.initial(fed.trainable)
        noise = {n: torch.randn(v.shape, generator=g) for n, v in trained.items()}
        return Params(
            {
                n: v + self.sigma * noise[n].to(v) if n in noise else v
                for n, v in fed.initial().items()
            }
        )

    def offer(self, fed: Federation, client: Client, state: Params) -> Params:
        return clusters.row(state, clusters.fittest(fed, client, state))

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        m = clusters.choose(fed, client, download, self.clusters)
        model = clusters.row(download, m)
        self.receive(client, model)
        if self.averaging == "models":
            self.train(fed, client, model, t)
        else:
            gradient(fed, client, t, partial(self.loss, client, model))
            client.load(client.gradient() * -learning_rate(fed, t) + model)
        number = torch.tensor(m, dtype=torch.int32)
        return Upload(model=client.params(), cluster=number, relative_to={"model": model})

    def aggregate(self, fed: Federation, state: Params, uploads: list[tuple[int, Any]]) -> Params:
        def part(k: int, sent: dict[str, Any]) -> Mean:
            m, weight = int(sent["cluster"]), self.weight(fed.clients[k])
            return clusters.part(sent["model"], weight, m, state)

        return fed.mean(((k, part(k, sent)) for k, sent in uploads), keep=state, per="row")
