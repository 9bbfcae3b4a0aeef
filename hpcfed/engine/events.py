"""The schedule of event-based methods, whose "round" is a number of merges in virtual time.

The ends of jobs are known before anything is computed. A round's jobs that have started are
therefore computed together, each at its client's rank, and merged one by one. Ranks meet only to
merge. There is no polling, and no result depends on the speed of the machine. The traffic of a job
counts in the round in which the job ends.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.algorithms.events import EventBased, Work
from hpcfed.core.payload import row_major
from hpcfed.engine.edge_aggregation import EventEdges
from hpcfed.engine.event_queue import Ended, make_queue
from hpcfed.engine.round_record import Row

if TYPE_CHECKING:
    from hpcfed.algorithms.base import State
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation


# in the memory of a client without a server: the result of its job until that is merged, and the
# last two messages as its neighbours have them
RESULT, SENT, BEFORE = "result", "sent", "before"
TOGETHER = 2**26  # largest bytes of results that all ranks hold before they are merged


class Events:
    """The schedule of an event-based method: its jobs and its clock.

    version: number of models that the server has made so far, one for each merge unless the server
    buffers; with edge servers [E], the number of each edge.
    queue: the open jobs, and virtual time.
    state: the server's initial state, which the first jobs download.
    edges: the edge servers of the job; None: it has none.
    """

    def __init__(self, fed: Federation, algorithm: EventBased, state: State) -> None:
        self.fed, self.algorithm = fed, algorithm
        self.edges = EventEdges(fed, algorithm, fed.edges, state) if fed.edges else None
        self.version = np.zeros(fed.edges.number if fed.edges else 1, np.int64)
        self._since = np.zeros(fed.K, np.int64)  # version at the start of each client's open job
        self._ended: list[Ended] = []  # of this round
        # jobs of clients that the server cannot reach yet, by client and in the order of starts
        self._waiting: dict[int, Work] = {}
        self._starts: list[tuple[float, int]] = []
        self._opened: dict[int, Work] = {}  # the jobs that are open, by client, in the round
        # results of this rank's clients that have finished but not yet reported
        self._results: dict[int, Any] = {}
        # results of clients of all ranks that all ranks have received
        self._uploads: dict[int, Any] = {}
        self._worked: set[int] = set()  # clients of all ranks whose open job has been computed
        # client, and merges of the server since its download
        self._staleness: list[tuple[int, int]] = []
        self.queue = make_queue(fed, algorithm)
        self.coordinator = self.queue.coordinator
        if self.edges:
            self.queue.ready = self.edges.ready_for
        self._hand_out(self._waits(self.queue.fill(), self.queue.now), state)

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.queue.now

    def state_of(self, k: int, state: State) -> State:
        """Return the state that client k downloads from: the server's, or that of its edge."""
        return self.edges.state_of(k, state) if self.edges else state

    def _server(self, k: int) -> int:
        """Return the number of the server of client k: its edge, or 0 without edges."""
        return int(self.edges.map.of[k]) if self.edges else 0

    def _made(self, k: int, state: State, new: State, models: int) -> State:
        """Store the new state of client k's server, and return the state of the central server.

        models: number of new models, 0 or 1.
        """
        e = self._server(k)
        self.version[e] += models
        if self.edges is None:
            return new
        self.edges.states[e] = new
        self.edges.weights[e] += models
        return state

    def begin(self, t: int) -> list[int]:
        """Open round t, for the first time or again, and return the clients that will report."""
        self.fed.participants.open(t)
        self._opened = {job.client: job for job in self.queue.going.values()}
        failed = {(k, number) for k, jobs in self.fed.replay.left.items() for number in jobs}
        self._ended = self.queue.advance(self.algorithm.merges or self.fed.cohort_size, failed)
        reports = sorted({job.client for job in self._jobs() if job.reports})
        if self.edges:
            self.edges.let_travel(t, self.now, reports)
        return reports

    def _jobs(self, begin: int = 0) -> list[Work]:
        """Return the round's jobs in the order of their ends, from event number `begin` on."""
        return [event.job for event in self._ended[begin:] if event.job is not None]

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        """Compute and merge the round's jobs in the order of their ends; collective.

        Returns the server's new state.
        """
        self._results, self._uploads, self._worked, self._staleness = {}, {}, set(), []
        for i, event in enumerate(self._ended):
            self._hand_out(self._due(event), state)
            if event.job is not None:
                state = self._end(i, event.job, state)
            if event.closes is not None:
                state = self._close(event, event.closes, state)
            self._opened |= {new.client: new for new in event.started}
            self._hand_out(self._waits(event.started, event.time), state)
        return self.edges.finish(t, state) if self.edges else state

    def report(self, cohort: list[int]) -> None:
        """Do nothing: a job sends all with its result."""

    def _close(self, event: Ended, group: int, state: State) -> State:
        """Make a new model from the buffered results of a group, and return the server's state."""
        # with edges there is no deadline, so a job closes the group
        k = event.job.client if event.job else 0
        new = self.coordinator.close(self.fed, self.state_of(k, state), group)
        return self._made(k, state, new, models=1)

    def _end(self, i: int, job: Work, state: State) -> State:
        """End a job, which is event i of the round, and return the server's state; collective."""
        if job.reports:
            if job.client not in self._worked:
                self._compute(self._jobs(i))
            staleness = int(self.version[self._server(job.client)] - self._since[job.client])
            state = self.merge(replace(job, staleness=staleness), state)
        else:
            for client in self.fed.mine([job.client]):
                if self.algorithm.to_server:
                    # otherwise a large population would keep all of them
                    client.memory.pop("download", None)
                elif SENT in client.memory:  # the next job starts with the same model
                    client.memory[BEFORE] = client.memory[SENT]
            who = self.fed.participants
            who.count_lost(job.client, job.share * who.draws.examples(job.client, job.amount))
        self._opened.pop(job.client)
        return state

    def merge(self, job: Work, state: State) -> State:
        """Merge a job's result into its target's model, and return the server's state; collective.

        The target is the server, or without a server the client itself.
        """
        fed, k = self.fed, job.client
        self._worked.discard(k)
        if self.algorithm.to_server:
            self._staleness.append((k, job.staleness))
            if k in self._uploads:
                up = self._uploads.pop(k)
            else:
                up = fed.exchange.from_client(k, self._results.pop(k, None))
            merged = self.algorithm.merge(fed, job, self.state_of(k, state), up, {})
            if merged is None:
                return state
            return self._made(k, state, merged, models=0 if self.coordinator.buffers else 1)
        near = self._arrived(job)
        for client in fed.mine([k]):
            model = client.params(self.algorithm.shared)
            merged = self.algorithm.merge(fed, job, model, client.memory.pop(RESULT), near)
            if merged is not None:
                client.load(merged)
        # the next job starts now, with this message
        messages = fed.run([k], lambda client: self.algorithm.send(fed, client), task=job.number)
        for message in messages.values():
            memory = fed.clients[k].memory
            memory[BEFORE] = memory[SENT] if SENT in memory else row_major(model)
            memory[SENT] = message
        return state

    def next_clients(self, t: int) -> list[int]:
        """Return the clients of the round after t, as far as they are known."""
        return [*self.queue.going]

    def elapse(self, ids: np.ndarray, cohort: list[int], columns: Row) -> Row:
        """Return the record's columns about the round's jobs; their time has passed in `begin`."""
        counts = Counter(job.client for job in self._jobs() if job.reports)
        lost = Counter(job.client for job in self._jobs() if not job.reports)
        return {
            "clients/reports": np.array([counts[k] for k in ids.tolist()]),
            "clients/lost": np.array([lost[k] for k in ids.tolist()]),
            **self._stale_reports(ids),
            **(self.edges.traffic() if self.edges else {}),
        }

    def to_tree(self) -> Row:
        """Return the part of a checkpoint that concerns virtual time."""
        waiting = np.array([*self._waiting], dtype=np.int64)
        return (
            {
                "agenda": self.queue.to_tree(),  # the queue's name in files
                "version": self.version.copy() if self.edges else int(self.version[0]),
                "since": self._since.copy(),
                "waiting": waiting,
            }
            | ({"edges": self.edges.to_tree()} if self.edges else {})
            | self._account()
        )

    def _account(self) -> Row:
        return {"account": self.fed.account.to_tree()} if self.fed.account else {}

    def from_tree(self, tree: Row) -> None:
        """Restore the state that `to_tree` returned."""
        self.queue.from_tree(tree["agenda"])
        self.version = np.array(tree["version"], np.int64).reshape(-1)
        if self.edges:
            self.edges.from_tree(tree["edges"])
        if self.fed.account:
            self.fed.account.from_tree(tree["account"])
        self._since = np.array(tree["since"])
        self._waiting, self._starts = {}, []
        self._wait(self.queue.going[int(k)] for k in tree["waiting"])

    def _waits(self, jobs: Iterable[Work], now: float) -> list[Work]:
        """Return those of the jobs begun now that also start now.

        The others wait for their start, and so do their downloads.
        """
        jobs = list(jobs)
        self._wait(job for job in jobs if job.start > now and self.algorithm.to_server)
        return [job for job in jobs if job.client not in self._waiting]

    def _wait(self, jobs: Iterable[Work]) -> None:
        for job in jobs:
            self._waiting[job.client] = job
            heapq.heappush(self._starts, (job.start, job.client))

    def _due(self, event: Ended) -> list[Work]:
        """Remove and return the waiting jobs that start before this event.

        The job that ends with this event is included if it was waiting.
        """
        late = []
        if event.job is not None and event.job.client in self._waiting:
            late.append(self._waiting.pop(event.job.client))
        while self._starts and self._starts[0][0] < event.time:
            start, k = heapq.heappop(self._starts)
            if k in self._waiting and self._waiting[k].start == start:
                late.append(self._waiting.pop(k))
        return late

    def _hand_out(self, jobs: Iterable[Work], state: State) -> None:
        """Give the server's state to the clients of the jobs that start."""
        for job in jobs:
            k = job.client
            self._since[k] = self.version[self._server(k)]
            if self.edges:
                self.edges.serve(k)
            for client in self.fed.mine([job.client]) if self.algorithm.to_server else ():
                served = self.state_of(k, state)
                with self.fed.seeded("offer", k, job.number):
                    client.memory["download"] = self.algorithm.offer(self.fed, client, served)

    def _compute(self, jobs: list[Work]) -> None:
        """Compute those of these jobs that have started, each at its client's rank.

        Jobs that have been computed already are left out.
        """
        ready = [
            job
            for job in jobs
            if job.reports
            and job.client in self._opened
            and self._opened[job.client].number == job.number
            and job.client not in self._worked
            and job.client not in self._waiting
        ]
        self._worked |= {job.client for job in ready}
        for job in sorted(ready, key=lambda job: job.client):
            self.fed.participants.partial[job.client] = job.amount
            work = partial(self._work, job=job)
            self._results |= self.fed.run([job.client], work, task=job.number)
        self._share([job.client for job in ready])

    def _work(self, client: Client, job: Work) -> Any:
        """Do a job, and return what is sent to the server; without one the client keeps it."""
        result = self.algorithm.work(self.fed, client, job)
        if self.algorithm.to_server:
            return result
        client.memory[RESULT] = result
        return None

    def _share(self, ks: list[int]) -> None:
        """Give all ranks the results of these clients at once, if they are small; collective.

        Larger results are sent one by one when they are merged, so that memory does not grow with
        them.
        """
        fed = self.fed
        size = sum(fed.participants.announced(k)[1] for k in ks)
        if self.algorithm.to_server and fed.comm.size > 1 and size <= TOGETHER:
            self._uploads |= fed.gather(self._results)
            self._results = {}

    def _arrived(self, job: Work) -> dict[int, Any]:
        """Return the neighbours' models that have arrived at the job's client; collective.

        For a neighbour whose latest message has not arrived yet, it is the message before. The
        result is on the rank of the job's client.
        """
        near = self.algorithm.near(self.fed, job.client, job.number)
        models = {}
        for client in self.fed.mine(near):
            message = client.recall(SENT if self._has_arrived(client.id, job.finish) else BEFORE)
            # one that has sent nothing has the model with which all start
            models[client.id] = message or client.params(self.algorithm.shared)
        return self.fed.exchange.to_client(job.client, models, near)

    def _has_arrived(self, k: int, now: float) -> bool:
        """Return whether client k's latest model has arrived at the others by now.

        It sends that model at the start of its open job.
        """
        who = self.fed.participants
        delay = who.profiles.seconds(k, 0, 0, who.announced(k)[1])
        return now >= self._opened[k].start + delay

    def _stale_reports(self, ids: np.ndarray) -> Row:
        """Return the mean staleness of these clients' reports, and of all reports of the round.

        The result is {} if nothing was reported to a server.
        """
        if not self._staleness:
            return {}
        ks, merges = np.array(self._staleness).T
        reports, total = np.bincount(ks, minlength=self.fed.K), np.bincount(ks, merges, self.fed.K)
        each = np.where(reports > 0, total / reports.clip(min=1), np.nan)
        return {"rounds/staleness": float(merges.mean()), "clients/staleness": each[ids]}
