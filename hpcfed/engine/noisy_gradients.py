"""Numbers of noisy gradients that clients will compute in each round, for the account of DP-SGD.

A trial (`hpcfed.algorithms.trial`) runs some of the job's rounds with one client of each kind, and
notes their trainings. How many gradients each takes follows from a client's number of examples.
Rounds of some methods differ (a warm-up, a ramp). So the first ones, the last one and some between
them are tried, and more between two that differ. A round between two that are alike is taken to be
like them; one between two that differ, to have the trainings of both. Round 0 is tried twice: what
clients do in it the first time alone, they do once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from hpcfed.algorithms.events import EventBased
from hpcfed.algorithms.trial import Kind, first_of_kinds, in_order, rehearse, trial
from hpcfed.engine.event_queue import make_queue
from hpcfed.federation.transforms.privacy.examples import Gradients
from hpcfed.federation.trial_notes import Training

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation

START = 4  # rounds from the first one that are all tried
MOST = 64  # rounds that are tried
Trainings = Mapping[Kind, Counter[Training]]


@dataclass(frozen=True)
class Rehearsed:
    """Trainings with noisy gradients by client kind.

    once: of a client before its first round.
    starts: rounds from which on the trainings are others.
    each: trainings of a client of the cohort in each round from there on.
    """

    once: Trainings
    starts: list[int]
    each: list[Trainings]

    def of_round(self, t: int) -> Trainings:
        """Return the trainings of a client of the cohort in round t."""
        return self.each[bisect_right(self.starts, t) - 1]


def rehearse_rounds(fed: Federation) -> Rehearsed:
    """Return the trainings of the rounds of a job, as trials of some of them show them."""
    kinds = {k: kind for kind, k in first_of_kinds(fed).items()}
    ids = in_order(fed, kinds)
    with trial(fed, ids) as small:
        notes, state = small.trial, small.job.algorithm.init(small)
        assert notes

        def try_round(t: int) -> Trainings:
            nonlocal state
            state = rehearse(small, state, t)
            return {kinds[k]: Counter(notes.trainings[i]) for i, k in enumerate(ids)}

        beginning = try_round(0)
        rounds = {0: try_round(0)}
        last = fed.job.rounds - 1
        powers = (START * 2**i for i in range(last.bit_length()))
        for t in (*range(1, START), *powers, last):
            if t <= last and t not in rounds:
                rounds[t] = try_round(t)
        open_gaps = [(a, b) for a, b in pairwise(sorted(rounds)) if rounds[a] != rounds[b]]
        while open_gaps and len(rounds) < MOST:
            a, b = open_gaps.pop()
            if b - a > 1:
                t = (a + b) // 2
                rounds[t] = try_round(t)
                open_gaps += [(c, d) for c, d in ((a, t), (t, b)) if rounds[c] != rounds[d]]
    once = {kind: beginning[kind] - each for kind, each in rounds[0].items()}
    return Rehearsed(once, *segments(rounds))


def segments(rounds: Mapping[int, Trainings]) -> tuple[list[int], list[Trainings]]:
    """Return the rounds from which on trainings are others, and these.

    rounds: trainings of those that were tried.
    """
    starts, each = [0], [rounds[0]]
    for a, b in pairwise(sorted(rounds)):
        if rounds[a] == rounds[b]:
            continue
        if b - a > 1:
            starts.append(a + 1)
            each.append({kind: rounds[a][kind] | rounds[b][kind] for kind in rounds[a]})
        starts.append(b)
        each.append(rounds[b])
    return starts, each


class NoisyGradients:
    """The noisy gradients of a job's clients, before they are computed."""

    def __init__(self, fed: Federation) -> None:
        self.fed = fed
        self.rehearsed = rehearse_rounds(fed)

    @cached_property
    def tasks(self) -> list[Counter[int]]:
        """The number of each client's tasks in each round, as far as they are known.

        A method with rounds has one for each client of the cohort; if cohorts depend on what is
        learned, all clients may be in them.
        """
        fed, method = self.fed, self.fed.job.algorithm
        rounds = range(fed.job.rounds)
        if isinstance(method, EventBased):
            queue = make_queue(fed, method)
            queue.fill()
            return [
                Counter(
                    event.job.client
                    for event in queue.advance(method.merges or fed.cohort_size)
                    if event.job is not None and event.job.reports
                )
                for _ in rounds
            ]
        if fed.choice.learns or fed.cohort_size == fed.K:
            everybody = Counter(range(fed.K))
            return [everybody for _ in rounds]
        return [Counter(method.cohort(fed, t)) for t in rounds]

    def of_round(self, t: int) -> dict[int, Gradients]:
        """Return the noisy gradients of the clients that may train in round t."""
        if t >= len(self.tasks):
            return {}
        each = self.rehearsed.of_round(t)
        return {k: self._of(k, each, number) for k, number in self.tasks[t].items()}

    def once(self, k: int) -> Gradients:
        """Return the noisy gradients of client k before its first round."""
        return self._of(k, self.rehearsed.once)

    @property
    def prepares(self) -> bool:
        """Whether clients train once before their first round, or in round 0."""
        return any(self.rehearsed.once.values())

    def total(self) -> dict[int, Gradients]:
        """Return the noisy gradients of each client in all rounds."""
        starts = self.rehearsed.starts
        total = {k: self.once(k) for k in range(self.fed.K if self.prepares else 0)}
        ends = [*starts[1:], self.fed.job.rounds]
        for start, end, each in zip(starts, ends, self.rehearsed.each, strict=True):
            number = Counter[int]()
            for tasks in self.tasks[start:end]:
                number.update(tasks)
            for k, times in number.items():
                total[k] = total.get(k, Gradients()) + self._of(k, each, times)
        return total

    def _of(self, k: int, trainings: Trainings, times: int = 1) -> Gradients:
        """Return the noisy gradients of client k in trainings; times: it does each."""
        fed = self.fed
        gradients = Gradients()
        for training, number in trainings[fed.architectures[k], fed.modalities[k]].items():
            q, releases = training.releases(int(fed.sizes[k]))
            gradients[q] += releases * number * times
        return gradients
