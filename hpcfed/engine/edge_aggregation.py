"""Edge servers between the clients and the server: hierarchical aggregation.

Liu et al., ICC 2020, arXiv:1905.06641 (HierFAVG): each edge aggregates its own clients in every
round, and every `edges.rounds` rounds the server aggregates the edges. The edges continue from the
server's model.

With edges.rounds = 1 an edge adds up what its clients send, and the server adds up these sums. Sums
are exact, so the results are those of the method without edges, bit for bit; only traffic and
virtual time differ. With more rounds each edge takes the method's mean of its own clients' uploads
as its model, and the server takes the mean of the edges' models. An event-based method runs at each
edge separately: the edge merges what its clients send as it arrives. A round is then a given number
of merges at all edges together.

An edge that no client has used since the server's last aggregation has nothing to send, and gets
the server's model with its next client. An edge that has done no round of its own would store a
copy of the server's model, so only states that differ from the server's are stored; all ranks have
them.

Deviations from the paper and its public code: the weight of an edge in the server's mean is the
weight of what it has aggregated since the server's last aggregation (event-based: the number of its
new models), not that of all its clients' examples; with full participation both are the same.
Learning rates follow the rounds of the job. An edge's sum counts as many bytes as the model that it
stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    from hpcfed.engine.round_record import Row
    from hpcfed.federation.federation import Federation


def with_model(state: State, model: Params) -> State:
    """Return the state with another model."""
    return model if isinstance(state, Params) else replace(state, model=model)


class EdgeServers:
    """The edge servers of a run, the same on all ranks.

    state: the server's initial state, which gives the type of states.
    states: the states of edges, by edge; an edge that is missing has the server's state.
    weights: [E], weight of what each edge has aggregated since the server's last aggregation.
    """

    def __init__(self, fed: Federation, algorithm: Method, edge_map: EdgeMap, state: State) -> None:
        self.fed, self.algorithm, self.map, self.kind = fed, algorithm, edge_map, type(state)
        self.every = fed.job.edges.rounds
        self.states: dict[int, State] = {}
        self.weights = np.zeros(edge_map.number)

    def due(self, t: int) -> bool:
        """Return whether the server aggregates the edges at the end of round t."""
        return (t + 1) % self.every == 0

    def state_of(self, k: int, state: State) -> State:
        """Return the state of the edge of client k; state is the server's."""
        return self.states.get(int(self.map.of[k]), state)

    def aggregate(self, state: State) -> State:
        """Return the server's new state, from which all edges continue; collective.

        state: the server's old state. The new model is the weighted mean of the models of the edges
        that have aggregated anything. With a single such edge it is that edge's model.
        """
        senders = [e for e in np.flatnonzero(self.weights).tolist() if e in self.states]
        if not senders:
            return state
        model_of = self.algorithm.model
        models = {e: model_of(self.states[e]) for e in senders}
        if len(senders) == 1:
            mean = models[senders[0]]
        else:
            comm = self.fed.comm
            mine = senders[comm.rank :: comm.size]
            terms = [t for e in mine for t in Mean.of(models[e], float(self.weights[e])).terms]
            mean = self.fed.exchange.mean(terms, model_of(state))
        self.weights = np.zeros(self.map.number)
        if isinstance(state, Params):
            self.states = {}
        else:  # results that are buffered at an edge stay there
            self.states = {e: with_model(edge_state, mean) for e, edge_state in self.states.items()}
        return with_model(state, mean)

    def to_tree(self) -> Row:
        """Return the part of a checkpoint that concerns edges."""
        states = {str(e): to_tree(edge_state) for e, edge_state in self.states.items()}
        return {"states": states, "weights": self.weights.copy()}

    def from_tree(self, tree: Row) -> None:
        """Restore the state that `to_tree` returned."""
        states, device = tree["states"], self.fed.device
        self.states = {
            int(e): from_tree(self.kind, edge_state, device) for e, edge_state in states.items()
        }
        self.weights = np.array(tree["weights"])


class SynchronousEdges(EdgeServers):
    """The edge servers of a method that works in rounds.

    An edge waits for other edges only when the server aggregates them all.

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
        """Run one round of all edges, and return the server's state; collective."""
        if self.every == 1:
            return self.algorithm.round(fed, state, cohort, t) if cohort else state
        method, by_edge = self.algorithm, self.map.split(cohort)
        states: dict[int, Any] = {e: self.states.get(e, state) for e in by_edge}
        uploads = {e: self._uploads(ks, states[e], t) for e, ks in by_edge.items()}
        self._add_weights(uploads)
        fed.turns.meanwhile()
        for e, edge_state in states.items():
            mean = method.aggregate(fed, edge_state, uploads[e])
            self.states[e] = method.server(fed, edge_state, mean, by_edge[e])
        return self.aggregate(state) if self.due(t) else state

    def _uploads(self, ks: Sequence[int], edge_state: State, t: int) -> list[tuple[int, Mean]]:
        """Return the uploads of this rank's clients of one edge.

        edge_state: the state of that edge.
        """
        fed, method = self.fed, self.algorithm
        together = lambda clients: stacked.train(fed, method, clients, edge_state, t)  # noqa: E731
        local = partial(method.local, fed)
        return list(fed.stream(ks, local, arguments=(edge_state, t), together=together))

    def _add_weights(self, uploads: dict[int, list[tuple[int, Mean]]]) -> None:
        """Add the weights of all ranks' uploads in this round to those of the edges; collective."""
        mine = {
            k: float(term.weight)  # type: ignore[arg-type]  # a whole upload has one number
            for sent in uploads.values()
            for k, mean in sent
            for term in mean.terms
        }
        weights = self.weights.copy()
        for k, weight in sorted(self.fed.gather(mine).items()):
            weights[self.map.of[k]] += weight
        self.weights = weights

    def time_of(self, k: int) -> float:
        """Return the time at the edge of client k, in virtual seconds."""
        return float(self.clocks[self.map.of[k]])

    def wait_for(self, ks: Sequence[int]) -> None:
        """Advance the clock of each edge until one of its clients among these is available.

        Availability comes from the job's traces. With edges.rounds = 1 all edges wait for the first
        available client of any edge.
        """
        profiles, by_edge = self.fed.participants.profiles, self.map.split(ks)
        for e, members in by_edge.items():
            self.clocks[e] = min(profiles.available_from(k, float(self.clocks[e])) for k in members)
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
        """Advance virtual time by round t.

        Returns the time of the latest edge, and the columns of the record for the traffic between
        edges and server.

        took: seconds of each client's exchange.  bytes_: the bytes that each client received and
        sent.
        lost: the clients that do not report; their edge waits for them until the deadline.
        deadline: virtual seconds.
        """
        link, down, up = self.map, 0, 0
        # part of each client's upload that is not part of the sum
        report_bytes = self.fed.choice.nbytes
        for e, ks in link.split([*took]).items():
            size = max(bytes_[k][0] for k in ks)
            if size and not self.served[e]:
                self.clocks[e] += link.latency[e] + link.transfer(e, size)
                self.served[e], down = True, down + size
            self.clocks[e] += max(deadline if deadline and k in lost else took[k] for k in ks)
            self.sends[e] = max(self.sends[e], *(bytes_[k][1] - report_bytes for k in ks))
            up += report_bytes * sum(k not in lost for k in ks)
        if self.due(t):
            for e in np.flatnonzero(self.sends).tolist():
                self.clocks[e] += link.transfer(e, self.sends[e])
            up += int(self.sends.sum())
            self.clocks[:] = self.clocks.max()
            self.sends[:], self.served[:] = 0, False
        return float(self.clocks.max()), {"rounds/edges_down": down, "rounds/edges_up": up}

    def to_tree(self) -> Row:
        clocks = {name: getattr(self, name).copy() for name in ("clocks", "sends", "served")}
        return super().to_tree() | clocks

    def from_tree(self, tree: Row) -> None:
        super().from_tree(tree)
        self.clocks, self.sends = np.array(tree["clocks"]), np.array(tree["sends"])
        self.served = np.array(tree["served"], bool)


class EventEdges(EdgeServers):
    """The edge servers of an event-based method, which merge results as they arrive.

    Each edge merges the results of its own clients. The server's aggregation, at the end of a
    round, takes effect at once. Before an edge hands out the new model, the time of an exchange
    with the server passes. Staleness counts the edge's own merges.

    weights: [E], number of new models of each edge since the server's last aggregation.
    ready: [E], virtual time from which an edge hands out models.
    served: [E], whether an edge has the server's newest model.
    """

    def __init__(self, fed: Federation, algorithm: Method, edge_map: EdgeMap, state: State) -> None:
        super().__init__(fed, algorithm, edge_map, state)
        self.nbytes = algorithm.model(state).nbytes
        self.served = np.zeros(edge_map.number, bool)
        self.ready = edge_map.latency + self.nbytes / edge_map.bandwidth
        self.down, self.up = 0, 0  # bytes of this round

    def ready_for(self, k: int) -> float:
        """Return the virtual time from which the edge of client k hands out models."""
        return float(self.ready[self.map.of[k]])

    def let_travel(self, t: int, now: float, reports: Iterable[int]) -> None:
        """Account for the time of the server's aggregation at the end of round t.

        now: virtual time of that end. If the server aggregates in this round, the models of edges
        whose clients have reported go up to the server, and then its model goes down, so an edge
        waits until the slowest of these models has arrived at the server.
        reports: the clients that report in this round.
        """
        if self.due(t):
            link, sends = self.map, self.weights > 0
            sends[[int(link.of[k]) for k in reports]] = True
            up = link.latency + self.nbytes / link.bandwidth
            arrival = now + float(up[sends].max(initial=0.0))
            self.ready = arrival + self.nbytes / link.bandwidth

    def serve(self, k: int) -> None:
        """Count the download of the server's newest model by the edge of client k, if it is due."""
        e = int(self.map.of[k])
        if not self.served[e]:
            self.served[e], self.down = True, self.down + self.nbytes

    def finish(self, t: int, state: State) -> State:
        """End round t, and return the server's state; collective."""
        if not self.due(t):
            return state
        self.up += self.nbytes * int(np.count_nonzero(self.weights))
        self.served = np.zeros(self.map.number, bool)
        return self.aggregate(state)

    def traffic(self) -> Row:
        """Return the record's columns for the traffic between edges and server in this round."""
        row = {"rounds/edges_down": self.down, "rounds/edges_up": self.up}
        self.down, self.up = 0, 0
        return row

    def to_tree(self) -> Row:
        fields: dict[str, Any] = {"served": self.served.copy(), "ready": self.ready.copy()}
        return super().to_tree() | fields | {"down": self.down, "up": self.up}

    def from_tree(self, tree: Row) -> None:
        super().from_tree(tree)
        self.served, self.ready = np.array(tree["served"], bool), np.array(tree["ready"])
        self.down, self.up = tree["down"], tree["up"]
