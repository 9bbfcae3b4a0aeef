"""Rounds: cohort, evaluation before, the algorithm's round, evaluation after, one record.

If clients fail, the round begins again without them. If a signal ends a round, it is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from hpcfed.algorithms.base import common_name, shares_all
from hpcfed.algorithms.events import EventBased
from hpcfed.algorithms.trial import download
from hpcfed.core.errors import ConfigError, everywhere
from hpcfed.core.payload import from_tree, row_major, to_tree
from hpcfed.core.wording import join_few
from hpcfed.engine.balance import Balance
from hpcfed.engine.calibration import on_gpus
from hpcfed.engine.early_stop import EarlyStop
from hpcfed.engine.edge_aggregation import SynchronousEdges
from hpcfed.engine.evaluation import Evaluation, merge_scores
from hpcfed.engine.events import Events
from hpcfed.engine.privacy import open_account
from hpcfed.engine.round_record import Flags, Recorder, Row
from hpcfed.federation.replay_log import STOP, Again
from hpcfed.federation.transforms.secure.attendance import SumFailed
from hpcfed.federation.upload import Upload
from hpcfed.machine.heartbeat import Stopped
from hpcfed.training import stacked
from hpcfed.training.adapt import adapt
from hpcfed.training.evaluate import Score

if TYPE_CHECKING:
    from hpcfed.algorithms.base import RoundBased, State
    from hpcfed.clients.client import Client
    from hpcfed.comm import Comm
    from hpcfed.federation.federation import Federation


class Schedule(Protocol):
    """The virtual-time schedule of a method: its clients, its clock and its rounds."""

    @property
    def now(self) -> float:
        """Virtual seconds."""

    @property
    def round(self) -> Callable[[Federation, Any, list[int], int], Any]:
        """The method's round: (fed, state, cohort, t) -> the new state."""

    def report(self, cohort: list[int]) -> None:
        """Let the clients send what they report after their round; collective."""

    def state_of(self, k: int, state: State) -> State:
        """Return the state that client k downloads from: the server's, or that of its edge."""

    def begin(self, t: int) -> list[int]:
        """Open round t, for the first time or again, and return the clients that will report."""

    def next_clients(self, t: int) -> list[int]:
        """Return the clients of the round after t, as far as they are known."""

    def elapse(self, ids: np.ndarray, cohort: list[int], columns: Row) -> Row:
        """Advance virtual time by the round, and return the record's columns for these clients."""

    def to_tree(self) -> Row:
        """Return the part of a checkpoint that concerns virtual time."""

    def from_tree(self, tree: Row) -> None:
        """Restore the state that `to_tree` returned."""


class Synchronous:
    """The schedule of a method that works in rounds, each as long as its slowest client.

    state: the server's initial state.  edges: the edge servers of the job; None: it has none.
    """

    def __init__(
        self, fed: Federation, algorithm: RoundBased, state: State, balance: Balance
    ) -> None:
        self.fed, self.algorithm, self.balance = fed, algorithm, balance
        self.now = 0.0
        self.edges = SynchronousEdges(fed, algorithm, fed.edges, state) if fed.edges else None
        self.losses: dict[int, float] = {}  # what the clients of the round reported of theirs

    @property
    def round(self) -> Callable[[Federation, Any, list[int], int], Any]:
        return self.edges.round if self.edges else self.algorithm.round

    def report(self, cohort: list[int]) -> None:
        """Let the cohort report on its training losses if the choice of cohorts needs them."""
        fed = self.fed
        if not fed.choice.needs_losses:
            return

        def report(client: Client) -> Upload | None:
            loss = fed.choice.report(fed.tallies[client.id], client.n)
            return Upload(training_loss=torch.tensor(loss)) if isfinite(loss) else None

        reports = fed.gather(fed.run(cohort, report))
        self.losses = {k: parts["training_loss"].item() for k, parts in reports.items()}

    def state_of(self, k: int, state: State) -> State:
        return self.edges.state_of(k, state) if self.edges else state

    def begin(self, t: int) -> list[int]:
        fed, method = self.fed, self.algorithm
        self.losses = {}
        cohort, keeps = method.cohort(fed, t), method.keeps_stragglers
        if fed.participants.profiles.trace:  # the server waits until a client is available
            reached = (fed.participants.profiles.available_from(k, self.now) for k in cohort)
            self.now = min(reached, default=self.now)
            if self.edges:
                self.edges.wait_for(cohort)
        time_of = self.edges.time_of if self.edges else lambda k: self.now
        reporting = fed.participants.begin(t, cohort, keeps, time_of, partial(download, fed))
        if fed.store.stateless and fed.comm.size > 1:
            self.balance.deal(reporting)
        return reporting

    def next_clients(self, t: int) -> list[int]:
        predictable = t + 1 < self.fed.job.rounds and not self.fed.choice.learns
        return self.algorithm.cohort(self.fed, t + 1) if predictable else []

    def elapse(self, ids: np.ndarray, cohort: list[int], columns: Row) -> Row:
        """Advance virtual time until the slowest client has reported.

        If a client is lost, the server waits for it until the deadline. If clients work one at a
        time, it waits for each of them.
        """
        lost, profiles = self.fed.participants.lost, self.fed.participants.profiles
        present = np.isin(ids, [*cohort, *lost])
        done = zip(
            ids[present].tolist(),
            *(columns[name][present].tolist() for name in ("work", "down", "up")),
            strict=True,
        )
        cells = {k: (work, down, up) for k, work, down, up in done}
        delays = self.fed.tallies.delays
        took = {k: profiles.seconds(k, *did) + delays[k] for k, did in cells.items()}
        deadline, traffic = self.fed.job.system.deadline or 0.0, dict[str, Any]()
        if self.edges:
            bytes_ = {k: (int(down), int(up)) for k, (_, down, up) in cells.items()}
            self.now, traffic = self.edges.elapse(self.fed.t, took, bytes_, [*lost], deadline)
        else:
            seconds = [deadline if deadline and k in lost else s for k, s in took.items()]
            self.now += sum(seconds) if self.algorithm.one_at_a_time else max(seconds, default=0.0)
        self.now += self.fed.tallies.server_delay
        self.fed.choice.learn(self.fed.t, cohort, self.losses, took)
        return {"clients/reports": np.isin(ids, cohort).astype(np.int64)} | traffic

    def _parts(self) -> dict[str, Any]:
        """Return what of the job has a state of its own from round to round, by name."""
        fed = self.fed
        parts = {
            "choice": fed.choice if fed.choice.learns else None,
            "edges": self.edges,
            "rule": fed.rule,
            "account": fed.account,
        }
        return {name: part for name, part in parts.items() if part}

    def to_tree(self) -> Row:
        return {"now": self.now} | {name: part.to_tree() for name, part in self._parts().items()}

    def from_tree(self, tree: Row) -> None:
        self.now = tree["now"]
        for name, part in self._parts().items():
            part.from_tree(tree[name])


@dataclass(frozen=True)
class Opened:
    """A round in progress.

    due: whether it is evaluated.  before: scores of the cohort before its training.
    judged: the clients that are evaluated after the round.
    early: scores of clients that were evaluated after their training but before the server's work,
    so that this rank need not wait idly for slower ones (`Turns.meanwhile`).
    """

    cohort: list[int]
    due: bool
    before: dict[int, Score]
    judged: Sequence[int]
    early: dict[int, Score]


class Rounds:
    """The state of a run between rounds, the same on all ranks, and the step to the next round.

    It has a `schedule` (the clients of a round, and virtual time), an `evaluation` (scores), a
    `balance` (measured costs, and moves of clients between ranks) and a `recorder` (a round's
    record).
    t: number of rounds done.  run_id: identity of the run in its files; no result depends on it.
    """

    def __init__(self, fed: Federation) -> None:
        """Initialise the run before its first round; collective."""
        algorithm = fed.job.algorithm
        with fed.seeded("init"):
            state: State = arranged(algorithm.init(fed), fed.device)
        self.fed, self.algorithm, self.state = fed, algorithm, state
        self.t, self.run_id = 0, ""
        fed.job = stacked.resolve_engine(fed, algorithm, on_gpus(fed))
        fed.turns.grouping = partial(stacked.groups, fed, algorithm)
        self.evaluation = Evaluation(fed, algorithm)
        self.balance = Balance(fed)
        self.recorder = Recorder(fed)
        self.early_stop = EarlyStop(fed.job.evaluate.patience)
        open_account(fed)
        self.schedule: Schedule = (
            Events(fed, algorithm, state)
            if isinstance(algorithm, EventBased)
            else Synchronous(fed, algorithm, state, self.balance)
        )
        self.evaluation.state_of = self.schedule.state_of

    def step(self, flags: Flags = dict) -> tuple[Row, dict[str, bool]]:
        """Run one round; collective.

        Returns its record and, for each flag, whether any rank raised it. Both are the same on all
        ranks.

        Raises Stopped on all ranks if a signal ends the round. The state is then that before the
        round, but the work that clients have finished stays in the replay log, so that a resumed
        run, also in another process, need not repeat it. On one rank the same holds for any other
        error before the round counts.
        """
        fed, t, start = self.fed, self.t, perf_counter()
        fed.clock.heartbeat.t = t
        before = self.state, self.schedule.to_tree(), self.evaluation.stale.copy()
        while True:
            try:
                with stop_together(fed.comm), fed.seeded("round", t):
                    opened = self._open(t)
                    if opened.cohort or self._works_without_cohort:
                        with fed.store.undo_log.set_recording():
                            self.state = self._round(opened)
                            self.schedule.report(opened.cohort)
                    return self._close(opened, start, flags)
            except Again:
                self._undo(*before)
                fed.turns.share_failures()
            except Stopped:
                self._undo(*before)
                raise
            except Exception:
                if fed.comm.size == 1 and self.t == t:
                    self._undo(*before)
                raise

    @property
    def _works_without_cohort(self) -> bool:
        """Whether a round in which no client reports is more than virtual time.

        Edges are aggregated, noise is added, and in virtual time jobs end and others start.
        """
        fed = self.fed
        return bool(
            fed.edges or (fed.rule and fed.rule.empty_cohorts) or self.algorithm.in_virtual_time
        )

    def _round(self, opened: Opened) -> State:
        """Do the method's round, and return the new state; collective.

        If a secure sum fails, neither the server nor a client has learned anything.
        """
        try:
            state = self.schedule.round(self.fed, self.state, opened.cohort, self.t)
            return arranged(state, self.fed.device)
        except SumFailed as failure:
            self._keep_state(f"round {self.t + 1}", failure)
            self.fed.store.undo_log.undo()
            opened.early.clear()
            return self.state

    def _keep_state(self, where: str, failure: SumFailed) -> None:
        """Warn that a secure sum has failed; raise it if it ends the run."""
        fed = self.fed
        if fed.job.secure.on_failure == "stop":
            failure.args = (
                f"{where}: {failure}\n  --resume with --secure.on_failure keep continues without "
                f"what such a round would have changed; a new run with a lower secure.threshold or "
                f"less system.dropout fails more rarely",
            )
            raise failure
        fed.tallies.secure_failed = True
        if fed.comm.rank == 0:
            fed.warnings.say(
                f"{where}: {failure}; server and clients stay as they were, as secure.on_failure = "
                f"'keep' has it"
            )

    @property
    def over(self) -> bool:
        """Whether the job has no further rounds, the same on all ranks."""
        return self.t >= self.fed.job.rounds or bool(self.early_end)

    @property
    def early_end(self) -> str:
        """Why the run ends before the job's last round; "" if it does not."""
        return self.early_stop.reason or (self.fed.account.reason if self.fed.account else "")

    def begin(self, t: int) -> list[int]:
        """Open round t, for the first time or again, and return the clients that will report."""
        self.fed.begin()
        return self.schedule.begin(t)

    def finish(self, save: Callable[[], None] = lambda: None) -> Row:
        """Run the method's steps after the last round, and adapt clients if the job has [adapt].

        save: saves the models after these steps; called on all ranks together, unless the method
        has no such steps or the models are adapted afterwards.

        Returns the scores after that. If nothing is done, these are the scores of the global model,
        which clients would receive now; {} if the method has none.
        """
        self.fed.participants.open(self.t - 1)  # a run that is resumed at its end has run none
        self.fed.begin()
        with self.fed.stay_with_clients(), self.fed.seeded("finish"):
            return self._scores_after(self._finish(self.t - 1), save)

    def _scores_after(self, state: State | None, save: Callable[[], None]) -> Row:
        """Return the scores after the last round.

        state: that of the method's steps after it; None: there are none.  save: as in `finish`.
        """
        adapts = self.fed.job.adapt.how != "none"
        if state is None and not adapts:
            one = self.algorithm.accepts == "one architecture" and shares_all(
                self.algorithm, self.fed
            )
            if not one or self.fed.job.evaluate.received:
                return {}
            return self.evaluation.after_last_round(self.state, self.t, received_only=True)
        if state is not None:
            self.state = arranged(state, self.fed.device)
        if state is not None and not adapts:
            self.fed.exchange.wait("final step")
            self.fed.replay.clear()  # turns of that step, which would be saved with the clients
            save()  # before the evaluation, which drops the weights of clients that keep none
        return self.evaluation.after_last_round(self.state, self.t, adapt if adapts else None)

    def _finish(self, t: int) -> State | None:
        """Do the method's steps after the last round; if a secure sum fails, none counts."""
        try:
            return self.algorithm.finish(self.fed, self.state, t)
        except SumFailed as failure:
            self._keep_state("after the last round", failure)
            return None

    def _open(self, t: int) -> Opened:
        """Do all that comes before the method's round; collective."""
        fed, evaluate, evaluation = self.fed, self.fed.job.evaluate, self.evaluation
        cohort = self.begin(t)
        evaluation.begin(cohort, t)
        fed.clock.heartbeat.expect(len(evaluation.cohort))
        if fed.store.states.away:
            fed.store.prefetch(k for k in self.schedule.next_clients(t) if k in fed.clients)
        last = t + 1 == fed.job.rounds or bool(fed.account and fed.account.may_end)
        due = last or (t + 1) % evaluate.every == 0
        before = evaluation.before(cohort, self.state) if due and evaluate.before else {}
        judged = evaluation.clients_to_evaluate(cohort) if due else []
        early: dict[int, Score] = {}
        if due and evaluation.independent:
            state = self.state
            # `RoundBased.round` calls it when this rank's clients have trained
            fed.turns.meanwhile = lambda: early.update(evaluation.own(judged, state))
        return Opened(cohort, due, before, judged, early)

    def _close(self, opened: Opened, start: float, flags: Flags) -> tuple[Row, dict[str, bool]]:
        """Do all that comes after the method's round; collective.

        Returns the round's record and flags, as `step` does.
        """
        fed, evaluate, evaluation = self.fed, self.fed.job.evaluate, self.evaluation
        cohort, due, early, state = opened.cohort, opened.due, opened.early, self.state
        fed.turns.meanwhile = lambda: None
        evaluation.note_changes(cohort)
        after = early | evaluation.after((k for k in opened.judged if k not in early), state)
        received, validated = {}, after
        if evaluate.received or evaluation.validates_received:
            received = evaluation.received(opened.judged, state, evaluation.validates_received)
        if evaluation.validates_received:
            received, validated = received if evaluate.received else {}, received
        unseen = evaluation.unseen(opened.judged, state) if due else {}
        attacked = evaluation.attacked(opened.judged, state) if due else {}
        values = {common_name(fed): float("nan")}
        if due:
            values |= self.algorithm.columns(fed, state)
        columns = {f"rounds/{name}": value for name, value in values.items()}
        fed.exchange.wait("record", over=True)
        columns |= self._close_transforms(cohort)
        failures = fed.replay.left
        if failures and not cohort:
            fed.warnings.say(
                f"round {self.t + 1}: all clients that took part have failed, and nothing is learnt"
            )
        fed.replay.clear()
        fed.store.undo_log.clear()
        evaluation.forget(*fed.store)
        fed.clients.trim()
        self.t += 1
        phases = {"_before": opened.before, "_received": received, "": after}
        named = {*cohort, *opened.judged}
        record = self.recorder.gather(named, merge_scores(phases), flags)
        evaluation.update(record.ids, record.columns)
        self.balance.measure(record.ids, record.columns)
        if due:
            evaluation.last_cohort = cohort
            evaluation.fill_in(record.ids, record.columns, opened.judged)
        row = self.recorder.row(record, cohort, failures)
        row |= evaluation.rows_elsewhere(record.ids, unseen, attacked)
        row |= evaluation.measure(record.ids, record.columns, phases, validated, due, opened.judged)
        row |= self.schedule.elapse(record.ids, cohort, record.columns)
        row |= {"rounds/virtual_seconds": self.schedule.now}
        if fed.job.secure.by != "none":
            row |= {"rounds/secure_failed": int(fed.tallies.secure_failed)}
        row |= record.of_ranks | {"rounds/seconds": perf_counter() - start}
        self.early_stop.note(self.t, row)
        if measured := sorted(name.removeprefix("rounds/") for name in row.keys() & columns.keys()):
            error = ConfigError(
                f"{self.algorithm.name}: its `columns` returns {join_few(measured, 4)}, which each "
                f"run measures; choose other names"
            )
            raise everywhere(error)
        return row | columns, record.flags

    def _close_transforms(self, cohort: list[int]) -> Row:
        """Let rule and account learn from the round; collective.  Returns their columns."""
        fed, columns = self.fed, dict[str, Any]()
        if not (fed.rule or fed.account):
            return columns
        mine = max(fed.replay.uploads.values(), default=0), fed.rule.report() if fed.rule else 0.0
        by_rank = fed.comm.gather({fed.comm.rank: mine})
        uploads, reports = zip(*by_rank.values(), strict=True)
        if fed.rule:
            fed.rule.close(fed, max(uploads), reports)
            columns |= fed.rule.columns()
        if fed.account:
            columns["rounds/epsilon"] = fed.account.close(fed.comm, cohort, max(uploads))
        return columns

    def _undo(self, state: State, time: Row, stale: np.ndarray) -> None:
        """Restore this rank's state from before the round, except for the replay log."""
        self.fed.turns.meanwhile = lambda: None
        self.fed.store.undo_log.undo()
        self.state, self.evaluation.stale = state, stale.copy()
        self.schedule.from_tree(time)


@contextmanager
def stop_together(comm: Comm) -> Iterator[None]:
    """Raise Stopped on all ranks if the block raises it on one.

    The other ranks raise it as soon as they would wait for this rank.
    """
    try:
        yield
    except Stopped as stop:
        if not stop.everywhere:
            comm.barrier(STOP)
        raise


def arranged(state: State, device: torch.device) -> State:
    """Return a method's state with all tensors in row-major order, see `row_major`."""
    tree = to_tree(state)
    rows = row_major(tree)
    return state if rows is tree else from_tree(state, rows, device)
