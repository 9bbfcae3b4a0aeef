"""Event-based methods: a "round" is so many merges in virtual time.

When jobs end is known before anything is computed. So a round's jobs that have started are computed
together, each at its client's rank, and merged one by one; ranks meet only to merge. There is no
polling, and nothing depends on how fast the machine is. What a job receives and sends counts in the
round in which it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.algorithms.events import EventBased, Work
from hpcfed.engine.agenda import Agenda, Ended
from hpcfed.engine.record import Row
from hpcfed.engine.rounds import Rounds

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation


def start(fed: Federation) -> Rounds:
    """The job's run before its first round; collective."""
    algorithm = fed.job.algorithm
    kind = Events if isinstance(algorithm, EventBased) else Rounds
    return kind(fed, algorithm, algorithm.init(fed))


@dataclass(eq=False)
class Events(Rounds):
    """The run of an event-based method between rounds."""

    algorithm: EventBased  # type: ignore[assignment]
    version: int = 0  # merges of the server so far
    since: dict[int, int] = field(
        default_factory=dict
    )  # version at the start of each client's open job
    ended: list[Ended] = field(default_factory=list)  # of this round
    waiting: list[Work] = field(
        default_factory=list
    )  # jobs of clients that the server cannot reach yet

    def __post_init__(self) -> None:
        super().__post_init__()
        seconds = partial(self.algorithm.seconds, self.fed)
        at_once = self.fed.cohort_size if self.algorithm.to_server else self.fed.K
        self.agenda = Agenda(self.fed.draws, at_once, seconds)
        self.hand_out(self.waits(self.agenda.fill(), self.agenda.now))

    def waits(self, jobs: Iterable[Work], now: float) -> list[Work]:
        """Of jobs begun now, those that start now; the others wait for their start, as their
        downloads do.
        """
        later = [job for job in jobs if job.start > now and self.algorithm.to_server]
        self.waiting += later
        return [job for job in jobs if job not in later]

    def due(self, ending: Work) -> list[Work]:
        """The jobs that waited and started before this one ends, itself if it did; they wait no
        longer.
        """
        late = [
            job for job in self.waiting if job.start < ending.finish or job.client == ending.client
        ]
        self.waiting = [job for job in self.waiting if job not in late]
        return late

    def hand_out(self, jobs: Iterable[Work]) -> None:
        """Give the clients of jobs that start the server's state; without a server keep the model
        that they had before, which others have until the new one arrives.
        """
        for job in jobs:
            self.since[job.client] = self.version
            for client in self.fed.mine([job.client]):
                if self.algorithm.to_server:
                    client.memory["download"] = self.state
                else:
                    client.memory["before"] = client.memory.pop("merged", None) or client.params()

    def begin(self, t: int) -> list[int]:
        self.fed.open(t)
        self.fed.journal.begin()
        self.opened = {job.client: job for job in self.agenda.going.values()}
        failed = {(k, number) for k, jobs in self.fed.journal.left.items() for number in jobs}
        self.ended = self.agenda.advance(self.algorithm.merges or self.fed.cohort_size, failed)
        return sorted({job.client for job, _ in self.pairs() if job.reports})

    def pairs(self) -> list[tuple[Work, tuple[Work, ...]]]:
        """The round's jobs as they end, each with those that then start."""
        return [(e.job, e.started) for e in self.ended]

    def advance(self, cohort: list[int], t: int) -> None:
        self.results: dict[
            int, Any
        ] = {}  # of this rank's clients that have worked but not yet reported
        self.worked: set[int] = set()  # clients, of all ranks, whose open job is computed
        self.staleness: list[
            tuple[int, int]
        ] = []  # client, and merges of the server since its download
        for i, (job, started) in enumerate(self.pairs()):
            self.hand_out(self.due(job))
            if job.reports:
                if job.client not in self.worked:
                    self.compute([e.job for e in self.ended[i:]])
                self.merge(replace(job, staleness=self.version - self.since[job.client]))
            else:
                self.fed.lose(
                    job.client, job.share * self.fed.draws.examples(job.client, job.amount)
                )
            self.opened.pop(job.client)
            self.opened |= {new.client: new for new in started}
            self.hand_out(self.waits(started, job.finish))

    def compute(self, jobs: list[Work]) -> None:
        """All of these jobs that have started and are not yet computed, each at its client's
        rank.
        """
        ready = [job for job in jobs if job.reports and self.opened.get(job.client) == job]
        ready = [job for job in ready if job.client not in self.worked and job not in self.waiting]
        self.worked |= {job.client for job in ready}
        for job in sorted(ready, key=lambda job: job.client):
            self.fed.partial[job.client] = job.amount
            work = lambda client, job=job: self.algorithm.work(self.fed, client, job)  # noqa: E731
            self.results |= self.fed.run([job.client], work, job=job.number)

    def merge(self, job: Work) -> None:
        """A job's result into what its target holds; collective."""
        k = job.client
        self.worked.discard(k)
        if self.algorithm.to_server:
            self.staleness.append((k, job.staleness))
            up = self.fed.from_client(k, self.results.pop(k, None))
            merged = self.algorithm.merge(self.fed, job, self.state, up, {})
            self.version += merged is not None
            self.state = self.state if merged is None else merged
            return
        near = self.arrived(job)
        for client in self.fed.mine([k]):
            held = client.params(self.algorithm.shared)
            client.memory["merged"] = held
            merged = self.algorithm.merge(self.fed, job, held, self.results.pop(k), near)
            if merged is not None:
                client.load(merged)

    def arrived(self, job: Work) -> dict[int, Any]:
        """The latest models of the clients near the job's, as they have arrived there; at its rank;
        collective.
        """
        given = self.algorithm.near(self.fed, job.client, job.number)
        models = {
            c.id: c.params(self.algorithm.shared)
            if self.has_arrived(c.id, job.finish)
            else c.memory["before"]
            for c in self.fed.mine(given)
        }
        return self.fed.to_client(job.client, models, given)

    def has_arrived(self, k: int, now: float) -> bool:
        """Whether what client k sent when its open job started has reached the others."""
        delay = self.fed.profiles.seconds(k, 0, 0, self.fed.announced(k)[1])
        return now >= self.opened[k].start + delay

    def next_clients(self) -> list[int]:
        return [*self.agenda.going]

    def elapse(self, ids: np.ndarray, cohort: list[int], columns: Row) -> Row:
        self.now = self.agenda.now
        counts = Counter(e.job.client for e in self.ended if e.job.reports)
        lost = {e.job.client for e in self.ended if not e.job.reports}
        return {
            "clients/reports": np.array([counts[k] for k in ids.tolist()]),
            "clients/lost": np.isin(ids, list(lost)),
            **self.stale_reports(ids),
        }

    def stale_reports(self, ids: np.ndarray) -> Row:
        """Mean staleness of what these clients reported to the server, and of all that was; nothing
        without one.
        """
        if not self.staleness:
            return {}
        ks, merges = np.array(self.staleness).T
        reports, total = np.bincount(ks, minlength=self.fed.K), np.bincount(ks, merges, self.fed.K)
        each = np.where(reports > 0, total / reports.clip(min=1), np.nan)
        return {"rounds/staleness": float(merges.mean()), "clients/staleness": each[ids]}

    def virtual(self) -> Row:
        since = [self.since.get(k, 0) for k in range(self.fed.K)]
        waiting = np.array([job.client for job in self.waiting], dtype=np.int64)
        return {
            "agenda": self.agenda.to_tree(),
            "version": self.version,
            "since": np.array(since),
            "waiting": waiting,
        }

    def go_on(self, kept: Row) -> None:
        self.agenda.from_tree(kept["agenda"])
        self.now, self.version = self.agenda.now, kept["version"]
        self.since = {k: int(v) for k, v in enumerate(kept["since"])}
        self.waiting = [self.agenda.going[int(k)] for k in kept["waiting"]]
