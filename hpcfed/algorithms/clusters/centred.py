"""What methods have in common whose clients start from the centre of their cluster."""

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
    """The centres, each tensor [M, *shape], and the cluster of each client, [K]; -1: it has not
    trained yet.
    """

    centres: Params
    cluster: Tensor


class Centred(RoundBased):
    """A client receives its centre; one that has not trained yet that of cluster k mod M."""

    keeps_weights: ClassVar[bool | None] = True

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        return {}  # there are several models, none of which is for everybody

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        m = int(state.cluster[client.id])
        M = len(next(iter(state.centres.values())))
        return clusters.row(state.centres, client.id % M if m < 0 else m)

    def send(self, fed: Federation, client: Client, state: State, t: int) -> None:
        """A client's round, of which the server keeps the model; the client's own is the same, and
        stands for it.
        """
        fed.up(client, self.local(fed, client, state, t).parts[0].value)
