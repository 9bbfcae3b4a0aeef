"""Base class of methods without a server, with rounds or with events."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from hpcfed import Client, EventBased, Federation, Mean, Params, Share, Upload
from hpcfed.algorithms.base import score_server
from hpcfed.algorithms.decentralised.mixing import metropolis, mix, uniform
from hpcfed.algorithms.decentralised.topology import Topology, among, graph
from hpcfed.config.conditions import Unused, field
from hpcfed.config.sections import Section


class Peers(Section):
    """A graph of clients with models of their own, a common start, and their consensus distance.

    A method inherits it before RoundBased or EventBased. The optimiser is kept from round to round
    unless the job says otherwise: where a round is a single step, a new optimiser for each would
    reduce Adam to the gradient's sign and give momentum no effect.
    """

    topology: Topology = "ring"
    """Graph that defines the neighbours."""
    cliques: PositiveInt = field(3, used_if={"topology": "clique-ring"})
    """Clique-ring: number of cliques."""
    density: Share = field(0.3, used_if={"topology": "erdos-renyi"})
    """Erdos-renyi: probability of each link."""
    i1: NonNegativeInt = 0
    """Consecutive local steps."""
    i2: PositiveInt = field(1, used_if="i1")
    """Steps with averaging after the local ones."""

    keeps_weights: ClassVar[bool | None] = True
    local_defaults: ClassVar[dict[str, Any]] = {"keep_optimiser": True}

    def averages(self, number: int) -> bool:
        """Return whether the step of this number, from 0, is one with averaging."""
        return number % (self.i1 + self.i2) >= self.i1

    def of(self, fed: Federation) -> tuple:
        """Return the arguments of `graph`."""
        return self.topology, fed.K, fed.seed, self.cliques, self.density

    def links(self, fed: Federation) -> np.ndarray:
        """Return the graph, [K, K], symmetric."""
        return graph(*self.of(fed))

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        """Return the most bytes; a trial with few clients has other numbers of neighbours.

        How many neighbours are in the cohort is known in the round only; events have no cohort.
        """
        others = fed.K if isinstance(self, EventBased) else fed.cohort_size
        return (min(int(self.links(fed)[k].sum()), others - 1) * self.message_bytes(fed),) * 2

    def message_bytes(self, fed: Federation) -> int:
        """Return the bytes of a message to one neighbour: by default of a model."""
        return fed.shapes().nbytes

    def init(self, fed: Federation) -> Params:
        """Give all clients the initial weights of client 0.

        The server's state is empty.
        """
        fed.start_alike()
        return Params()

    def receive(self, client: Client, state: Params) -> None:
        """Do nothing: without a server the client keeps its model."""

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        """Return the consensus distance and, with evaluate.common, the mean model's score.

        The consensus distance is the root of the mean over clients of the squared distance to the
        mean model, over parameters and buffers. Collective. Kong et al., ICML 2021,
        arXiv:2102.04828.
        """
        mean, mine = consensus(fed), {}
        for client in fed.mine(range(fed.K)):
            mine[client.id] = sum(
                float(d.double().square().sum()) for d in (client.params() - mean).values()
            )
        numbers = {"consensus_distance": math.sqrt(sum(fed.gather(mine).values()) / fed.K)}
        return numbers | score_server(fed, fed.architectures[0], mean)


class PeersInStep(Peers):
    """Peers that exchange messages in rounds, and average what they receive by weights of links."""

    unused: ClassVar[Unused] = {
        "weighting": "averages are weighted by links",
    }

    weights: Literal["metropolis", "uniform"] = "metropolis"
    """Weights of neighbours; uniform is doubly stochastic only if all clients have equally many.
    """

    def rows(self, fed: Federation, cohort: list[int]) -> np.ndarray:
        """Return the weights with which the cohort's clients average, [K, K]."""
        return (metropolis if self.weights == "metropolis" else uniform)(
            among(self.links(fed), cohort)
        )

    def exchange(
        self, fed: Federation, cohort: list[int], message: Callable[[Client], Params]
    ) -> dict[int, Params]:
        """Return the means, float64, of each client's and its neighbours' messages; collective.

        message: of a client, which its turn does not change.  The result is of this rank's clients.
        """
        links, rows = among(self.links(fed), cohort), self.rows(fed, cohort)
        # a client that fails leaves its neighbours with fewer receivers: after an exchange their
        # turns are done again then
        fed.exchange.wait("links")
        sent = fed.run(
            cohort, lambda client: Upload(message(client), receivers=int(links[client.id].sum()))
        )

        def received(i: int, j: int, value: Params) -> Params:
            client = fed.clients[i]
            return message(client) if i == j else fed.down(client, value)

        return mix({k: rows[k] for k in sent}, fed.each(sent), received)


def consensus(fed: Federation) -> Params:
    """Return the plain mean of all clients' models, buffers too; collective.

    It is not counted as traffic.
    """
    uploads = ((c.id, Mean.of(c.params())) for c in fed.mine(range(fed.K)))
    return fed.mean(uploads, keep=fed.initial())
