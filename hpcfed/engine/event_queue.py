"""The clock of event-based methods: the open jobs and the times of their ends.

It is pure arithmetic, the same on all ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.algorithms.events import Coordinator, Decision, EventBased, Work
from hpcfed.core import rng

if TYPE_CHECKING:
    from hpcfed.algorithms.base import State
    from hpcfed.clients.edges import EdgeMap
    from hpcfed.clients.participation import Draws
    from hpcfed.federation.federation import Federation

# the fields of an open job in a checkpoint: the first fields of Work, in their order
COLUMNS = {
    "client": np.int64,
    "number": np.int64,
    "start": np.float64,
    "finish": np.float64,
    "amount": np.int64,
    "share": np.float64,
}
NAP = 1000  # draws without success after which a client counts as reached


class EdgeCoordinator(Coordinator):
    """One coordinator for each edge server, which decides about the edge's own clients.

    coordinators: the coordinators, by edge.  edge_map: the edge of each client.
    """

    def __init__(self, coordinators: Sequence[Coordinator], edge_map: EdgeMap) -> None:
        self.coordinators, self.map = coordinators, edge_map

    @property
    def buffers(self) -> bool:  # type: ignore[override]  # as each of them has it
        return self.coordinators[0].buffers

    def begin(self, k: int, now: float, most: int) -> int:
        return self.of(k).begin(k, now, most)

    def end(self, job: Work) -> Decision:
        return self.of(job.client).end(job)

    def close(self, fed: Federation, state: State, group: int) -> State:
        return self.coordinators[0].close(fed, state, group)

    def of(self, k: int) -> Coordinator:
        """Return the coordinator at the edge of client k."""
        return self.coordinators[int(self.map.of[k])]

    def to_tree(self) -> dict[str, Any]:
        return {str(e): one.to_tree() for e, one in enumerate(self.coordinators)}

    def from_tree(self, tree: dict[str, Any]) -> None:
        for e, one in enumerate(self.coordinators):
            one.from_tree(tree[str(e)])


@dataclass(frozen=True)
class Ended:
    """The events of one point in virtual time.

    job: the job that ends then; None: a deadline of the server passes.
    started: the jobs that begin after it.
    closes: the group of which the server makes a new model then; None: it makes none.
    """

    time: float
    job: Work | None
    started: tuple[Work, ...]
    closes: int | None = None


class Free:
    """The set of free clients; the i-th by id is found in O(log K).

    It is a Fenwick tree of counts.
    """

    def __init__(self, K: int, busy: Iterable[int] = ()) -> None:
        self._flags = np.ones(K, np.int8)
        self._flags[[*busy]] = 0
        self.n = int(self._flags.sum())
        ends = np.arange(1, K + 1)
        sums = np.concatenate([[0], np.cumsum(self._flags, dtype=np.int64)])
        # node i counts the clients i - (i & -i) .. i - 1
        self._nodes = [0, *(sums[ends] - sums[ends - (ends & -ends)]).tolist()]
        self._top = 1 << K.bit_length() - 1

    def __getitem__(self, i: int) -> int:
        """Return the id of the i-th free client, counted from 0."""
        at, step, nodes = 0, self._top, self._nodes
        while step:
            if at + step < len(nodes) and nodes[at + step] <= i:
                at += step
                i -= nodes[at]
            step >>= 1
        return at

    def _set(self, k: int, flag: int) -> None:
        change = flag - int(self._flags[k])
        self._flags[k], self.n = flag, self.n + change
        i, nodes = k + 1, self._nodes
        while change and i < len(nodes):
            nodes[i] += change
            i += i & -i

    def take(self, k: int) -> None:
        self._set(k, 0)

    def release(self, k: int) -> None:
        self._set(k, 1)

    @property
    def busy(self) -> np.ndarray:
        """Ids of the clients that are not free, in order."""
        return np.flatnonzero(self._flags == 0)


@dataclass(eq=False)
class EventQueue:
    """The open jobs of event-based methods, at most one for each client.

    The cost of an event grows with the logarithm of the number of clients.

    draws: random draws of participation and drop-out.
    at_once: number of clients that are busy at any time.
    seconds: (client, examples) -> virtual seconds of a job.
    coordinator: the server's decisions.
    ready: client -> virtual time from which it can get a model.
    """

    draws: Draws
    at_once: int
    seconds: Callable[[int, int], float]
    coordinator: Coordinator = field(default_factory=Coordinator)
    ready: Callable[[int], float] = lambda k: 0.0
    now: float = 0.0
    started: int = 0  # number of jobs so far
    counts: np.ndarray = field(init=False)  # [K], jobs started by each client
    going: dict[int, Work] = field(default_factory=dict)  # by client

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.draws.sizes), dtype=np.int64)
        self.free = Free(len(self.counts))
        self._ends: list[tuple[float, int]] = []  # (time, client) of the jobs that are open, a heap

    def fill(self) -> tuple[Work, ...]:
        """Start jobs of free clients, drawn one by one, until `at_once` clients are busy."""
        clients: list[int] = []
        while len(self.counts) - self.free.n < self.at_once:
            n = self.free.n
            name = self.started + len(clients)
            i = int(rng.stream(self.draws.seed, "check-in", name).integers(n)) if n > 1 else 0
            clients.append(self.free[i])
            self.free.take(clients[-1])
        fresh = []
        for k in self.coordinator.order(clients):
            job = self.going[k] = self.begin(k)
            heapq.heappush(self._ends, (job.finish, k))
            fresh.append(job)
        return tuple(fresh)

    def begin(self, k: int) -> Work:
        """Return client k's next job, which begins now.

        A client that cannot be reached waits for the time of a job, and then tries again. It tries
        only while its trace has it available, and the job takes what the trace says at its start.
        """
        draws, number = self.draws, int(self.counts[k])
        most = self.coordinator.begin(k, self.now, draws.full)
        amount = self.amount(k, number, most)
        examples, start = draws.examples(k, amount), max(self.now, self.ready(k))
        for nap in range(NAP + 1):
            start = draws.profiles.available_from(k, start)
            draws.profiles.follow(k, start)
            seconds = self.seconds(k, examples)
            if nap == NAP or draws.reachable(number * NAP + nap, k):
                break
            start += seconds
        share = draws.dropout(number, k)
        lasts = seconds if share is None else share * seconds
        self.counts[k] += 1
        self.started += 1
        return Work(k, number, start, start + lasts, amount, 1.0 if share is None else share)

    def amount(self, k: int, number: int, most: int) -> int:
        """Return the number of epochs or steps of a job.

        It is `most`, or for a straggler a number drawn uniformly from 1..most.
        """
        local = self.draws.local
        if not local.stragglers:
            return most
        g = rng.stream(self.draws.seed, "stragglers", number, k)
        return int(g.integers(1, most + 1)) if g.random() < local.stragglers else most

    def advance(self, reports: int, failed: Collection[tuple[int, int]] = ()) -> list[Ended]:
        """Advance virtual time until this many jobs have reported or failed; return the events.

        Jobs end in the order (time, client). A job that ends exactly at a deadline is in time.

        failed: (client, number) of jobs that do not report because their client fails. They count,
        or a round in which all clients fail would never end.
        """
        ended = []
        while reports:
            job = None
            if self.coordinator.deadline() < self._ends[0][0]:
                self.now = self.coordinator.deadline()
                decision = self.coordinator.expire()
            else:
                job = self.going.pop(heapq.heappop(self._ends)[1])
                if (job.client, job.number) in failed:
                    job = replace(job, failed=True)
                self.now, reports = job.finish, reports - (job.reports or job.failed)
                decision = self.coordinator.end(job)
                if decision.group:
                    job = replace(job, group=decision.group)
            for k in decision.released:
                self.free.release(k)
            ended.append(Ended(self.now, job, self.fill(), decision.closes))
        return ended

    def to_tree(self) -> dict[str, Any]:
        """Return the part of a checkpoint that concerns the queue."""
        going = [*self.going.values()]
        return {
            "now": self.now,
            "started": self.started,
            "counts": self.counts.copy(),
            "going": {
                name: np.array([getattr(job, name) for job in going], kind)
                for name, kind in COLUMNS.items()
            },
            "busy": self.free.busy,
            "coordinator": self.coordinator.to_tree(),
        }

    def from_tree(self, tree: dict[str, Any]) -> None:
        """Restore the state that `to_tree` returned."""
        self.now, self.started, self.counts = tree["now"], tree["started"], np.array(tree["counts"])
        columns = [np.asarray(tree["going"][name]).tolist() for name in COLUMNS]
        jobs = [Work(*values) for values in zip(*columns, strict=True)]
        self.going = {job.client: job for job in jobs}
        for job in jobs:
            self.draws.profiles.follow(job.client, job.start)
        self._ends = [(job.finish, job.client) for job in jobs]
        heapq.heapify(self._ends)
        self.free = Free(len(self.counts), map(int, tree["busy"]))
        self.coordinator.from_tree(tree["coordinator"])


def make_queue(fed: Federation, algorithm: EventBased) -> EventQueue:
    """Return the queue of a run before its first job."""
    coordinator = algorithm.coordinator
    if fed.edges:
        coordinators = [algorithm.coordinator for _ in range(fed.edges.number)]
        coordinator = EdgeCoordinator(coordinators, fed.edges)
    return EventQueue(
        draws=fed.participants.draws,
        at_once=fed.cohort_size if algorithm.to_server else fed.K,
        seconds=partial(algorithm.seconds, fed),
        coordinator=coordinator,
    )
