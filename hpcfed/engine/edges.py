"""Edge servers between the clients and the server: hierarchical aggregation.

Liu et al., ICC 2020, arXiv:1905.06641 (HierFAVG): each edge aggregates its own clients in every
round, and every `edges.rounds` rounds the server aggregates the edges, which go on from its model.

With edges.rounds = 1 an edge adds up what its clients send, and the server adds up these sums. Sums
are exact, so that this is the method without edges, bit for bit; what differs is traffic and
virtual time. With more rounds each edge takes the method's mean of its own clients' uploads as its
model, and the server takes the mean of the edges' models. An event-based method runs at each edge
by itself, which merges what its clients send as it comes; a round is so many merges at all edges
together.

An edge that no client has used since the server's last aggregation has nothing to send, and gets
the server's model with the next client that does. Without a round of its own each edge would have a
server's model in memory, so only those are kept that differ; all ranks have them.

Deviations from the paper and its public code: an edge counts in the server's mean by the weights
of what it has aggregated since the server's last one (event-based: by its new models), not by all
its clients' examples; where all take part it is the same. Learning rates follow the rounds of the
job. An edge's sum is counted as the model that it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.core.params import Mean, Params
from hpcfed.core.payload import from_tree, to_tree
from hpcfed.training import stacked

if TYPE_CHECKING:
    from hpcfed.algorithms.base import Method, RoundBased, State
    from hpcfed.clients.edges import EdgeMap
    from hpcfed.engine.record import Row
    from hpcfed.federation.federation import Federation


def model_of(state: State) -> Params:
    """What of a server's state an edge and the server send one another."""
    return state if isinstance(state, Params) else state.model


def with_model(state: State, model: Params) -> State:
    """The state with another model."""
    return model if isinstance(state, Params) else replace(state, model=model)


class EdgeServers:
    """The edges of a run between rounds, the same on all ranks.

    state: what the server starts with, for its type.  states: by edge, those that are not the
    server's.  weights: [E], of what each has aggregated since the server's last aggregation.
    """

    def __init__(self, fed: Federation, algorithm: Method, edge_map: EdgeMap, state: State) -> None:
        self.fed, self.algorithm, self.map, self.kind = fed, algorithm, edge_map, type(state)
        self.every = fed.job.edges.rounds
        self.states: dict[int, State] = {}
        self.weights = np.zeros(edge_map.number)

    def due(self, t: int) -> bool:
        """Whether the server aggregates the edges at the end of round t."""
        return (t + 1) % self.every == 0

    def state_of(self, k: int, state: State) -> State:
        """What the edge of client k has. state: the server's."""
        return self.states.get(int(self.map.of[k]), state)

    def aggregate(self, state: State) -> State:
        """The server's new state, from which all edges go on; collective. state: its old one.

        The weighted mean of the models of the edges that have aggregated anything; of a single one
        its model itself.
        """
        senders = [e for e in np.flatnonzero(self.weights).tolist() if e in self.states]
        if not senders:
            return state
        models = {e: model_of(self.states[e]) for e in senders}
        if len(senders) == 1:
            mean = models[senders[0]]
        else:
            comm = self.fed.comm
            mine = senders[comm.rank :: comm.size]
            parts = [p for e in mine for p in Mean.of(models[e], float(self.weights[e])).parts]
            mean = self.fed.exchange.mean(parts, model_of(state))
        self.weights = np.zeros(self.map.number)
        if isinstance(state, Params):
            self.states = {}
        else:  # what waits at an edge stays there
            self.states = {e: with_model(own, mean) for e, own in self.states.items()}
        return with_model(state, mean)

    def to_tree(self) -> Row:
        """What a checkpoint keeps."""
        states = {str(e): to_tree(own) for e, own in self.states.items()}
        return {"states": states, "weights": self.weights.copy()}

    def from_tree(self, tree: Row) -> None:
        """Continue from what `to_tree` gave."""
        kept, device = tree["states"], self.fed.device
        self.states = {int(e): from_tree(self.kind, own, device) for e, own in kept.items()}
        self.weights = np.array(tree["weights"])


class SynchronousEdges(EdgeServers):
    """Edges of a method that works in rounds.

    An edge does not wait for others until the server aggregates them all.

    clocks: [E], virtual seconds.  served: [E], whether an edge has the server's newest model.
    sends: [E], bytes that it will send to the server.
    """

    algorithm: RoundBased

    def __init__(
        self, fed: Federation, algorithm: RoundBased, edge_map: EdgeMap, state: State
    ) -> None:
        super().__init__(fed, algorithm, edge_map, state)
        self.clocks, self.sends = np.zeros(edge_map.number), np.zeros(edge_map.number, np.int64)
        self.served = np.zeros(edge_map.number, bool)

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        """One round of all edges; collective. Returns the server's state."""
        if self.every == 1:
            return self.algorithm.round(fed, state, cohort, t) if cohort else state
        by_edge = self.map.split(cohort)
        own: dict[int, Any] = {e: self.states.get(e, state) for e in by_edge}
        uploads = {e: self._uploads(ks, own[e], t) for e, ks in by_edge.items()}
        self._add_weights(uploads)
        fed.exchange.meanwhile()
        for e, given in own.items():
            mean = fed.mean(uploads[e], keep=given)
            self.states[e] = self.algorithm.server(given, mean)
        return self.aggregate(state) if self.due(t) else state

    def _uploads(self, ks: Sequence[int], own: State, t: int) -> list[tuple[int, Mean]]:
        """What this rank's clients of an edge send, which has this state."""
        fed, method = self.fed, self.algorithm
        together = lambda clients: stacked.train(fed, method, clients, own, t)  # noqa: E731
        local = partial(method.local, fed)
        return list(fed.stream(ks, local, given=(own, t), together=together))

    def _add_weights(self, uploads: dict[int, list[tuple[int, Mean]]]) -> None:
        """Add what the clients of all ranks weigh in this round; collective."""
        mine = {
            k: float(part.weight)  # type: ignore[arg-type]  # a whole upload has one number
            for sent in uploads.values()
            for k, mean in sent
            for part in mean.parts
        }
        weights = self.weights.copy()
        for k, weight in sorted(self.fed.gather(mine).items()):
            weights[self.map.of[k]] += weight
        self.weights = weights

    def time_of(self, k: int) -> float:
        """The time at the edge of client k, in virtual seconds."""
        return float(self.clocks[self.map.of[k]])

    def wait_for(self, ks: Sequence[int]) -> None:
        """Let an edge wait until one of these clients can be reached, where traces say when.

        With edges.rounds = 1 all edges wait until one client of any can be.
        """
        profiles, by_edge = self.fed.participation.profiles, self.map.split(ks)
        for e, own in by_edge.items():
            self.clocks[e] = min(profiles.available_from(k, float(self.clocks[e])) for k in own)
        if self.every == 1 and by_edge:
            self.clocks[:] = min(self.clocks[e] for e in by_edge)

    def elapse(
        self,
        t: int,
        took: dict[int, float],
        bytes_: dict[int, tuple[int, int]],
        lost: Sequence[int],
        deadline: float,
    ) -> tuple[float, Row]:
        """Let round t's virtual time pass.

        Returns the time of the latest edge, and what the record says of the traffic between edges
        and server.

        took: seconds of each client's exchange.  bytes_: that it received and sent.  lost: those of
        them for which their edge waits until the deadline.
        """
        link, down, up = self.map, 0, 0
        asked = self.fed.choice.nbytes  # of each client's upload, which is no part of the sum
        for e, ks in link.split([*took]).items():
            size = max(bytes_[k][0] for k in ks)
            if size and not self.served[e]:
                self.clocks[e] += link.latency[e] + link.transfer(e, size)
                self.served[e], down = True, down + size
            seconds = [took[k] for k in ks]
            self.clocks[e] += max([*seconds, deadline] if {*ks} & {*lost} else seconds)
            self.sends[e] = max(self.sends[e], *(bytes_[k][1] - asked for k in ks))
            up += asked * sum(k not in lost for k in ks)
        if self.due(t):
            for e in np.flatnonzero(self.sends).tolist():
                self.clocks[e] += link.transfer(e, self.sends[e])
            up += int(self.sends.sum())
            self.clocks[:] = self.clocks.max()
            self.sends[:], self.served[:] = 0, False
        return float(self.clocks.max()), {"rounds/edges_down": down, "rounds/edges_up": up}

    def to_tree(self) -> Row:
        own = {name: getattr(self, name).copy() for name in ("clocks", "sends", "served")}
        return super().to_tree() | own

    def from_tree(self, tree: Row) -> None:
        super().from_tree(tree)
        self.clocks, self.sends = np.array(tree["clocks"]), np.array(tree["sends"])
        self.served = np.array(tree["served"], bool)


class EventEdges(EdgeServers):
    """Edges of an event-based method: each merges what its own clients send, as it comes.

    The server's aggregation, at the end of a round, takes effect at once; what an exchange with the
    server takes passes before an edge hands out the new model. Staleness counts an edge's own
    merges. weights: new models that an edge has made.

    ready: [E], virtual time from which an edge hands out models.  served: [E], whether it has the
    server's newest model.
    """

    def __init__(self, fed: Federation, algorithm: Method, edge_map: EdgeMap, state: State) -> None:
        super().__init__(fed, algorithm, edge_map, state)
        self.nbytes = model_of(state).nbytes
        self.served = np.zeros(edge_map.number, bool)
        self.ready = edge_map.latency + self.nbytes / edge_map.bandwidth
        self.down, self.up = 0, 0  # bytes of this round

    def ready_for(self, k: int) -> float:
        """From when on the edge of client k hands out models."""
        return float(self.ready[self.map.of[k]])

    def let_travel(self, t: int, now: float) -> None:
        """Round t ends now: where the server aggregates, models go up and then down, and an edge
        waits for the slowest one.
        """
        if self.due(t):
            link = self.map
            there = now + float((link.latency + self.nbytes / link.bandwidth).max())
            self.ready = there + self.nbytes / link.bandwidth

    def serve(self, k: int) -> None:
        """Client k gets its edge's model, which comes from the server where it is new."""
        e = int(self.map.of[k])
        if not self.served[e]:
            self.served[e], self.down = True, self.down + self.nbytes

    def finish(self, t: int, state: State) -> State:
        """The end of round t; collective. Returns the server's state."""
        if not self.due(t):
            return state
        self.up += self.nbytes * int(np.count_nonzero(self.weights))
        self.served = np.zeros(self.map.number, bool)
        return self.aggregate(state)

    def traffic(self) -> Row:
        """What the record says of the traffic between edges and server in this round."""
        row = {"rounds/edges_down": self.down, "rounds/edges_up": self.up}
        self.down, self.up = 0, 0
        return row

    def to_tree(self) -> Row:
        own: dict[str, Any] = {"served": self.served.copy(), "ready": self.ready.copy()}
        return super().to_tree() | own | {"down": self.down, "up": self.up}

    def from_tree(self, tree: Row) -> None:
        super().from_tree(tree)
        self.served, self.ready = np.array(tree["served"], bool), np.array(tree["ready"])
        self.down, self.up = tree["down"], tree["up"]
