"""Base class of methods whose clients start from the centre of their cluster."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from hpcfed import Client, Federation, Params, RoundBased, Upload
from hpcfed.algorithms import received
from hpcfed.algorithms.clusters import clusters


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

    def keep_received(
        self, fed: Federation, state: State, uploads: list[tuple[int, Any]]
    ) -> list[Client]:
        """Keep the model that the server received last of each client, in the client's memory.

        Returns this rank's clients of which it has one.
        """
        received.remember(fed, uploads)
        before = state.cluster.ge(0).nonzero()[:, 0].tolist()
        return fed.mine(sorted({*dict(uploads), *before}))

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        self.train(fed, client, download, t)
        return Upload(model=client.params(self.shared), relative_to={"model": download})
