"""Participation of clients in the current round, and the amount of work of each."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING

from hpcfed.clients.participation import Draws, Outcome, Traffic

if TYPE_CHECKING:
    import numpy as np

    from hpcfed.clients.client import Client
    from hpcfed.clients.profiles import Profiles
    from hpcfed.config.job import Job
    from hpcfed.federation.replay_log import ReplayLog
    from hpcfed.federation.tallies import Tallies


class Participants:
    """Absence, stragglers, drop-outs and deadline of the current round, drawn when it begins.

    mine: this rank's clients.
    traffic: bytes that the method says a client receives and sends in a round.
    """

    def __init__(
        self,
        job: Job,
        profiles: Profiles,
        sizes: Sequence[int] | np.ndarray,
        mine: Container[int],
        tallies: Tallies,
        replay: ReplayLog,
        traffic: Traffic,
    ) -> None:
        self.draws = Draws(job.seed, job.system, job.local, profiles, sizes)
        self.profiles = profiles  # the clients' devices and network, in virtual time
        self.lost: dict[int, float] = {}  # examples processed by each client that will not report
        self.partial: dict[int, int] = {}  # epochs or steps of clients that do less than all
        self.cohort: frozenset[int] | None = None  # of the round; None: nobody has drawn one
        self._mine, self._tallies, self._replay = mine, tallies, replay
        self._traffic, self._announced = traffic, dict[int, tuple[int, int]]()

    def open(self, t: int) -> None:
        """Begin round t: reset the tallies and the participation."""
        self._tallies.open(t)
        self.lost, self.partial, self.cohort = {}, {}, None

    def begin(
        self,
        t: int,
        cohort: list[int],
        keep_stragglers: bool,
        time_of: Callable[[int], float] = lambda k: 0.0,
        download: Callable[[int], int] | None = None,
    ) -> list[int]:
        """Begin round t, draw its participation, and return the clients that will report.

        time_of: client -> virtual seconds at which its trace is read; its availability and speed
        hold for the full round.
        download: client -> bytes that a lost one received, without messages of secure sums, which
        each sum counts itself; default: what the method announces.
        A lost client trained, but sends nothing; its download and work are counted. The same holds
        for a client that has failed in the round (`ReplayLog.left`).
        """
        self.open(t)
        self.cohort = frozenset(cohort)
        reachable = [k for k in cohort if self.draws.reachable(t, k)]
        if self.profiles.trace:
            times = {k: time_of(k) for k in reachable}
            reachable = [
                k for k, now in times.items() if self.profiles.available_from(k, now) == now
            ]
            for k in reachable:
                self.profiles.follow(k, times[k])
        slow = self.draws.stragglers(t, reachable)
        outcome = self.draws.outcome(t, reachable, slow, keep_stragglers, self.announced)
        actual: Outcome = outcome.without(self._replay.left, self.draws)
        self.lost, self.partial = actual.lost, actual.partial
        for k, examples in self.lost.items():
            self.count_lost(k, examples, download)
        return actual.reports

    def count_lost(
        self, k: int, examples: float, download: Callable[[int], int] | None = None
    ) -> None:
        """Count what a client that never reports received, and the examples it processed.

        download: as for `begin`.
        """
        if k in self._mine:
            self._tallies[k].down += download(k) if download else self.announced(k)[0]
            self._tallies[k].work += examples

    def announced(self, k: int) -> tuple[int, int]:
        """Return the bytes that the method says client k receives and sends in a round."""
        if k not in self._announced:
            self._announced[k] = self._traffic(k)
        return self._announced[k]

    def work(self, client: Client, epochs: int | None = None) -> int:
        """Return the epochs or steps, as the job counts, that the client does in this round."""
        return epochs or self.partial.get(client.id, self.draws.full)
