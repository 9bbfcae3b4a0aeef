"""Base class of methods whose clients start from the centre of their cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from hpcfed.algorithms.base import RoundBased
from hpcfed.algorithms.clusters import clusters
from hpcfed.core.params import Params

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation


@dataclass(frozen=True)
class State:
    """State of the server: the centres and the clients' clusters.

    centres: models of all M clusters, each tensor [M, *shape].
    cluster: cluster of each client, [K]; -1 if it has not trained yet.
    """

    centres: Params
    cluster: Tensor


class Centred(RoundBased):
    """A method whose clients receive the centre of their cluster.

    A client k that has not trained yet receives the centre of cluster k mod M.
    """

    keeps_weights: ClassVar[bool | None] = True

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        return {}  # there are several models, none of which is for all clients

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        m = int(state.cluster[client.id])
        M = len(next(iter(state.centres.values())))
        return clusters.row(state.centres, client.id % M if m < 0 else m)

    def send(self, fed: Federation, client: Client, state: State, t: int) -> None:
        """Run a client's round and send its model to the server.

        The server keeps the models. The client's own model is the same and stands for the server's
        copy.
        """
        fed.up(client, self.local(fed, client, state, t).terms[0].value)
