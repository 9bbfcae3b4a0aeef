"""Rounds: cohort, evaluation before, the algorithm's round, evaluation after, one record.

Begun again without the clients that failed, undone where a signal ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpcfed.algorithms.base import keeps_weights
from hpcfed.algorithms.events import EventBased
from hpcfed.engine.balance import Balance
from hpcfed.engine.edges import SynchronousEdges
from hpcfed.engine.evaluation import Evaluation, merge_scores
from hpcfed.engine.events import Events
from hpcfed.engine.record import Flags, Recorder, Row
from hpcfed.federation.replay_log import STOP, Again
from hpcfed.machine.heartbeat import Stopped
from hpcfed.training import stacked
from hpcfed.training.adapt import adapt
from hpcfed.training.evaluate import Score

if TYPE_CHECKING:
    from hpcfed.algorithms.base import RoundBased, State
    from hpcfed.comm import Comm
    from hpcfed.federation.federation import Federation


class Schedule(Protocol):
    """Who works when, in virtual time: what differs between methods with rounds and without."""

    @property
    def now(self) -> float:
        """Virtual seconds."""

    @property
    def round(self) -> Callable[[Federation, Any, list[int], int], Any]:
        """What the method does in a round: (fed, state, cohort, t) -> the new state."""

    def state_of(self, k: int, state: State) -> State:
        """What client k gets its part of: the server's state, or that of its edge."""

    def begin(self, t: int) -> list[int]:
        """Open round t, also again. Returns the clients that will report."""

    def next_clients(self, t: int) -> list[int]:
        """The clients of the round after t, as far as they are known."""

    def elapse(self, ids: np.ndarray, cohort: list[int], columns: Row) -> Row:
        """Let the round's virtual time pass; what the record says of it for these clients."""

    def to_tree(self) -> Row:
        """What a checkpoint keeps of virtual time."""

    def from_tree(self, kept: Row) -> None:
        """Continue from what `to_tree` gave."""


class Synchronous:
    """The schedule of a method that works in rounds, each as long as its slowest client.

    state: what the server starts with.  edges: the edge servers of the job; None: it has none.
    """

    def __init__(
        self, fed: Federation, algorithm: RoundBased, state: State, balance: Balance
    ) -> None:
        self.fed, self.algorithm, self.balance = fed, algorithm, balance
        self.now = 0.0
        self.edges = SynchronousEdges(fed, algorithm, fed.edges, state) if fed.edges else None

    @property
    def round(self) -> Callable[[Federation, Any, list[int], int], Any]:
        return self.edges.round if self.edges else self.algorithm.round

    def state_of(self, k: int, state: State) -> State:
        return self.edges.state_of(k, state) if self.edges else state

    def begin(self, t: int) -> list[int]:
        fed, method = self.fed, self.algorithm
        drawn, keeps = method.cohort(fed, t), method.keeps_stragglers
        if fed.participation.profiles.trace:  # the server waits until somebody can be reached
            reached = (fed.participation.profiles.available_from(k, self.now) for k in drawn)
            self.now = min(reached, default=self.now)
            if self.edges:
                self.edges.wait_for(drawn)
        time_of = self.edges.time_of if self.edges else lambda k: self.now
        cohort = fed.participation.begin(t, drawn, keeps, time_of)
        if fed.store.stateless and fed.comm.size > 1:
            self.balance.deal(cohort)
        for client in fed.mine(cohort) if fed.choice.nbytes else ():
            fed.tallies[client.id].up += fed.choice.nbytes  # what the choice of cohorts asks for
        return cohort

    def next_clients(self, t: int) -> list[int]:
        known = t + 1 < self.fed.job.rounds and not self.fed.choice.learns
        return self.algorithm.cohort(self.fed, t + 1) if known else []

    def elapse(self, ids: np.ndarray, cohort: list[int], columns: Row) -> Row:
        """Until the slowest has reported, or the deadline for which a lost one is waited."""
        lost, profiles = self.fed.participation.lost, self.fed.participation.profiles
        there = np.isin(ids, [*cohort, *lost])
        done = zip(
            ids[there].tolist(),
            *(columns[name][there] for name in ("work", "down", "up")),
            strict=True,
        )
        cells = {k: (work, down, up) for k, work, down, up in done}
        took = {k: profiles.seconds(k, *did) for k, did in cells.items()}
        deadline, traffic = self.fed.job.system.deadline or 0.0, dict[str, Any]()
        if self.edges:
            bytes_ = {k: (int(down), int(up)) for k, (_, down, up) in cells.items()}
            self.now, traffic = self.edges.elapse(self.fed.t, took, bytes_, [*lost], deadline)
        else:
            seconds = took.values()
            self.now += max([*seconds, deadline] if lost else seconds, default=0.0)
        losses = dict(zip(ids.tolist(), columns["train_loss"].tolist(), strict=True))
        self.fed.choice.learn(self.fed.t, set(cohort), losses)
        return {"clients/reports": np.isin(ids, cohort).astype(np.int64)} | traffic

    def to_tree(self) -> Row:
        learnt = {"choice": self.fed.choice.to_tree()} if self.fed.choice.learns else {}
        edges = {"edges": self.edges.to_tree()} if self.edges else {}
        return {"now": self.now} | learnt | edges

    def from_tree(self, kept: Row) -> None:
        self.now = kept["now"]
        if self.edges:
            self.edges.from_tree(kept["edges"])
        if self.fed.choice.learns:
            self.fed.choice.from_tree(kept["choice"])


@dataclass(frozen=True)
class Opened:
    """A round that is going on.

    due: whether it is evaluated.  before: scores of the cohort as it came.  judged: the clients
    that are evaluated after it.  early: scores of those that were evaluated while this rank waited.
    """

    cohort: list[int]
    due: bool
    before: dict[int, Score]
    judged: Iterable[int]
    early: dict[int, Score]


class Rounds:
    """A run between rounds, the same on all ranks, and the step from one round to the next.

    It has a `schedule` (who works when, in virtual time), an `evaluation` (scores), a `balance`
    (measured costs, and moves of clients between ranks) and a `recorder` (a round's record).
    t: rounds done.  run_id: what names the run in its files; no result depends on it.
    """

    def __init__(self, fed: Federation) -> None:
        """The job's run before its first round; collective."""
        algorithm = fed.job.algorithm
        state: State = algorithm.init(fed)
        self.fed, self.algorithm, self.state = fed, algorithm, state
        self.t, self.run_id = 0, ""
        fed.store.stateless = not keeps_weights(algorithm, fed)
        fed.job = stacked.resolve_engine(fed, algorithm)
        fed.turns.grouping = partial(stacked.groups, fed, algorithm)
        self.evaluation = Evaluation(fed, algorithm)
        self.balance = Balance(fed)
        self.recorder = Recorder(fed)
        self.schedule: Schedule = (
            Events(fed, algorithm, state)
            if isinstance(algorithm, EventBased)
            else Synchronous(fed, algorithm, state, self.balance)
        )
        self.evaluation.state_of = self.schedule.state_of

    def step(self, flags: Flags = dict) -> tuple[Row, dict[str, bool]]:
        """One round; collective.

        Returns its record and the flags that any rank raised, the same on all ranks.

        Raises Stopped on all ranks where a signal ends it; all is then as before the round, but for
        the turns that are done, which the replay log has: in another process too the round is gone
        on with.
        """
        fed, t, start = self.fed, self.t, perf_counter()
        fed.clock.heartbeat.t = t
        before = self.state, self.schedule.to_tree(), self.evaluation.stale.copy()
        while True:
            try:
                with stop_together(fed.comm):
                    opened = self._open(t)
                    if opened.cohort or fed.edges:  # edges that nobody uses are aggregated too
                        with fed.store.past.set_recording():
                            self.state = self.schedule.round(fed, self.state, opened.cohort, t)
                    return self._close(opened, start, flags)
            except Again:
                self._undo(*before)
                fed.turns.share_failures()
            except Stopped:
                self._undo(*before)
                raise

    def begin(self, t: int) -> list[int]:
        """Open round t, also again. Returns the clients that will report."""
        self.fed.replay.begin()
        return self.schedule.begin(t)

    def finish(self) -> Row:
        """What the method does after the last round, and clients where the job has [adapt].

        Their scores then, nothing if nothing is done.
        """
        t = self.t - 1
        self.fed.participation.open(t)  # a run that is resumed at its end has had no round
        state = self.algorithm.finish(self.fed, self.state, t)
        adapts = self.fed.job.adapt.how != "none"
        if state is None and not adapts:
            return {}
        if state is not None:
            self.state = state
        return self.evaluation.after_last_round(self.state, self.t, adapt if adapts else None)

    def _open(self, t: int) -> Opened:
        """All that comes before the method's round; collective."""
        fed, evaluate, evaluation = self.fed, self.fed.job.evaluate, self.evaluation
        cohort = self.begin(t)
        evaluation.begin(cohort, t)
        fed.clock.heartbeat.expect(len(evaluation.cohort))
        if fed.store.kept.away:
            fed.store.prefetch(k for k in self.schedule.next_clients(t) if k in fed.clients)
        due = (t + 1) % evaluate.every == 0 or t + 1 == fed.job.rounds
        before = evaluation.before(cohort, self.state) if due and evaluate.before else {}
        judged = evaluation.clients_to_evaluate(cohort) if due else []
        early: dict[int, Score] = {}
        if due and evaluation.independent:
            state = self.state
            fed.exchange.meanwhile = lambda: early.update(evaluation.own(judged, state))
        return Opened(cohort, due, before, judged, early)

    def _close(self, opened: Opened, start: float, flags: Flags) -> tuple[Row, dict[str, bool]]:
        """All that comes after the method's round; collective."""
        fed, evaluate, evaluation = self.fed, self.fed.job.evaluate, self.evaluation
        cohort, due, early, state = opened.cohort, opened.due, opened.early, self.state
        fed.exchange.meanwhile = lambda: None
        evaluation.note_changes(cohort)
        after = early | evaluation.after((k for k in opened.judged if k not in early), state)
        received = evaluation.received(opened.judged, state) if evaluate.received else {}
        found = {"accuracy_common": float("nan")}
        if due:
            found |= self.algorithm.columns(fed, state)
        whole = {f"rounds/{name}": value for name, value in found.items()}
        fed.exchange.wait("record", over=True)
        failures = fed.replay.left
        fed.replay.clear()
        fed.store.past.clear()
        evaluation.forget(*fed.store)
        fed.clients.trim()
        self.t += 1
        phases = {"_before": opened.before, "_received": received, "": after}
        record = self.recorder.gather(cohort, merge_scores(phases), flags)
        evaluation.update(record.ids, record.columns)
        self.balance.measure(record.ids, record.columns)
        if due:
            evaluation.fill_in(record.ids, record.columns)
        row = self.recorder.row(record, cohort, failures)
        row |= evaluation.measure(record.ids, record.columns, phases, due)
        row |= self.schedule.elapse(record.ids, cohort, record.columns)
        row |= {"rounds/virtual_seconds": self.schedule.now}
        row |= record.of_ranks | {"rounds/seconds": perf_counter() - start}
        return row | whole, record.flags

    def _undo(self, state: State, time: Row, stale: np.ndarray) -> None:
        """Make this rank's part of the run what it was before the round, turns that are done
        excepted.
        """
        self.fed.exchange.meanwhile = lambda: None
        self.fed.store.past.undo()
        self.state, self.evaluation.stale = state, stale.copy()
        self.schedule.from_tree(time)


@contextmanager
def stop_together(comm: Comm) -> Iterator[None]:
    """Where the block raises Stopped on one rank, all ranks raise it, as soon as they would wait
    for this one.
    """
    try:
        yield
    except Stopped as stop:
        if not stop.everywhere:
            comm.barrier(STOP)
        raise
