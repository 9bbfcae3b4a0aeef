"""The clock of event-based methods: which jobs are open, and when they end. Pure arithmetic, the
same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.algorithms.events import Work
from hpcfed.core import rng

if TYPE_CHECKING:
    from hpcfed.clients.participation import Draws

NAP = 1000  # unlucky draws of a client that is hard to reach, after which it is reached


@dataclass(frozen=True)
class Ended:
    """A job that ended, and those that started at once."""

    job: Work
    started: tuple[Work, ...]


@dataclass(eq=False)
class EventQueue:
    """Jobs that are open, one a client at most.

    draws: what becomes of clients.  at_once: how many jobs are open at any time.  seconds: (client,
    examples) -> virtual seconds of a job.
    """

    draws: Draws
    at_once: int
    seconds: Callable[[int, int], float]
    now: float = 0.0
    started: int = 0  # jobs so far
    counts: np.ndarray = field(init=False)  # [K], jobs started by each client
    going: dict[int, Work] = field(default_factory=dict)  # by client

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.draws.sizes), dtype=np.int64)

    def fill(self) -> tuple[Work, ...]:
        """Start jobs of free clients, drawn one by one, until as many are open as may be."""
        fresh = []
        while len(self.going) < self.at_once:
            free = len(self.counts) - len(self.going)
            k = int(
                rng.stream(self.draws.seed, "check-in", self.started).integers(free)
            )  # the k-th of those
            for busy in sorted(self.going):
                k += busy <= k
            self.going[k] = self.begin(k)
            fresh.append(self.going[k])
        return tuple(fresh)

    def begin(self, k: int) -> Work:
        """Client k's next job, from now on; a client that cannot be reached lets the time of a job
        go by, and again.
        """
        draws, number = self.draws, int(self.counts[k])
        amount, name = self.amount(k, number), number * NAP
        whole = self.seconds(k, draws.examples(k, amount))
        naps = next((i for i in range(NAP) if draws.reachable(name + i, k)), NAP)
        share = draws.dropout(number, k)
        lasts = whole if share is None else share * whole
        self.counts[k] += 1
        self.started += 1
        start = self.now + naps * whole
        return Work(k, number, start, start + lasts, amount, 1.0 if share is None else share)

    def amount(self, k: int, number: int) -> int:
        """Epochs or steps of this job: all, or where the client is a straggler a part, uniform in
        1..all.
        """
        g, local = rng.stream(self.draws.seed, "stragglers", number, k), self.draws.local
        slow = local.stragglers and g.random() < local.stragglers
        return int(g.integers(1, self.draws.full + 1)) if slow else self.draws.full

    def advance(self, reports: int, failed: Collection[tuple[int, int]] = ()) -> list[Ended]:
        """Let time pass until so many jobs have reported. Jobs end in the order (time, client).

        failed: client and number of those that do not report, for their client fails.
        """
        ended = []
        while reports:
            job = min(self.going.values(), key=lambda job: (job.finish, job.client))
            del self.going[job.client]
            job = replace(job, failed=(job.client, job.number) in failed)
            self.now, reports = job.finish, reports - job.reports
            ended.append(Ended(job, self.fill()))
        return ended

    def to_tree(self) -> dict[str, Any]:
        """All that it needs to go on."""
        going = [asdict(job) for job in self.going.values()]
        return {
            "now": self.now,
            "started": self.started,
            "counts": self.counts.copy(),
            "going": going,
        }

    def from_tree(self, tree: dict[str, Any]) -> None:
        """Continue from what `to_tree` gave."""
        self.now, self.started, self.counts = tree["now"], tree["started"], np.array(tree["counts"])
        self.going = {job["client"]: Work(**job) for job in tree["going"]}
