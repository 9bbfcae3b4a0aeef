"""GHN: clients with different models share a graph hyper-network that makes their weights.

It makes the weights of each model from the model's graph.

Litany et al. (Federated Learning with Heterogeneous Architectures using Graph HyperNetworks), 2022,
arXiv:2201.08459. Messages have one size, whatever a client's network is.

Rests on the abstract and on notes about the paper; no code is public, so the sizes of the
hyper-network are this project's.

Objective: F_k(GHN_theta(A_k))
Server: theta <- sum_k p_k theta_k
Round:
1. The server sends the hyper-network theta to the cohort.
2. On client k it makes the weights of the client's network from the graph A_k of that network.
3. The client trains theta through these weights.
4. It sends theta_k, never its graph.
5. The server takes the weighted mean.

Deviations: edges follow the order of the layers in the network, so a shortcut is a link of that
chain. The decoder makes 64 values at a time from a node's state and their place in the tensor, for
all shapes alike. The weights of a unit have a mean of 0 over its inputs, and a variance of 2 /
inputs at first (`hyper.scale`). Statistics of batch normalisation are not made and stay with their
client.
"""

from typing import Any, ClassVar

from pydantic import PositiveInt

from hpcfed import Guide, Job, RoundBased
from hpcfed.models.variants import name_variant

HYPER = "body.hyper."  # prefix of the names of the hyper-network's parameters


class GHN(RoundBased):
    """GHN is FedAvg of the hyper-network."""

    guide = Guide(
        data="different labels",
        sent="the hyper-network",
        won="clients with different architectures, also new ones",
    )

    reads_head: ClassVar[bool] = True
    accepts: ClassVar[str] = "any models"
    keeps_weights: ClassVar[bool | None] = True

    hidden: PositiveInt = 64
    """Units of the hyper-network's layers."""
    messages: PositiveInt = 2
    """Rounds of messages along the edges of the graph."""

    @property
    def variants(self) -> Any:
        return (name_variant("hyper", self.hidden, self.messages),)

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if min(job.models.widths) < 1:
            reasons["job"] = (
                "makes weights of whole networks, but models.widths has sub-models; set "
                "models.widths = [1]"
            )
        return reasons

    def shared(self, name: str) -> bool:
        return name.startswith(HYPER)
