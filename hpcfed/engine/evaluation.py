"""Evaluation of clients around a round; it does not change what is trained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from hpcfed.algorithms.base import Method, architecture, has_server_model, score_common
from hpcfed.config.evaluate import evaluates_all
from hpcfed.core import rng
from hpcfed.engine.round_record import Row
from hpcfed.engine.run_metrics import Metrics, Scores
from hpcfed.federation.transforms.attack.attackers import attackers
from hpcfed.machine.error_messages import kind
from hpcfed.training.evaluate import NONE, Predict, Score, draws, score, score_on

if TYPE_CHECKING:
    from hpcfed.algorithms.base import State
    from hpcfed.clients.client import Client, Shard
    from hpcfed.federation.federation import Federation


SERVER = -1  # stands for the server's model among scores by client


class Evaluation:
    """Scores of the clients of a run.

    scores: [K, 3], last main metric and loss of each client, and the class that its model predicts
    for all test examples, nan if there are several.
    stale: [K], whether a client has trained since its last score.
    cohort: ids of this rank's clients in the round's cohort.
    last_cohort: the cohort of the last evaluated round.
    metrics: metrics beyond the main one, and those of all clients' answers together.
    attackers: clients that attack the others.
    """

    def __init__(self, fed: Federation, algorithm: Method) -> None:
        self.fed, self.algorithm = fed, algorithm
        self.scores, self.stale = np.full((fed.K, 3), np.nan), np.ones(fed.K, dtype=bool)
        self.metrics = Metrics(fed)
        self.cohort: set[int] = set()
        self.last_cohort: list[int] = []
        self.attackers = attackers(fed.job)
        self._t = 0
        # called with each client whose model has been adapted
        self.save: Callable[[Client], None] = lambda client: None
        # the state from which a client downloads: the server's, or that of its edge
        self.state_of: Callable[[int, State], State] = lambda k, state: state

    def begin(self, cohort: Iterable[int], t: int) -> None:
        """Start round t with this cohort; called again if the round is repeated."""
        self._t = t
        self.cohort = {k for k in cohort if k in self.fed.clients}
        for _ in self._mine(sorted(self.cohort)):  # which sets architectures
            pass

    def clients_to_evaluate(self, cohort: list[int]) -> Sequence[int]:
        """Return the clients that are evaluated after a round, by the job's evaluate.clients.

        They are the same on all ranks. Attackers are not evaluated.
        """
        K, wanted = self.fed.K, self.fed.job.evaluate.clients
        if evaluates_all(wanted, K):
            return self.honest(range(K))
        if isinstance(wanted, int):
            g = rng.stream(self.fed.seed, "evaluated")
            return self.honest(g.choice(K, min(wanted, K), replace=False).tolist())
        return self.honest(cohort)

    def honest(self, ks: Sequence[int]) -> Sequence[int]:
        """Return those of these clients that do not attack the others."""
        return [k for k in ks if k not in self.attackers] if self.attackers else ks

    def before(self, cohort: Iterable[int], state: State) -> dict[int, Score]:
        """Return the cohort's scores before its training, as `received` computes them.

        If a round is repeated, the scores of clients that have already trained are those of the
        first time.
        """
        replay = self.fed.replay
        new = self.received(
            self.honest([k for k in cohort if not replay.turns(k) and replay.of(k).before is None]),
            state,
        )
        for k, result in new.items():
            replay.of(k).before = result
        return {k: Score(*replay.of(k).before or NONE) for k in sorted(self.cohort)}

    def received(self, ks: Iterable[int], state: State, validate: bool = False) -> dict[int, Score]:
        """Return the scores of the models that these clients would receive in a round.

        state: the server's state, from which that round would start. The clients' own models stay
        as they are.
        validate: also score the examples that the clients hold out.
        """
        scores = {}
        for client in self._mine(ks):
            with self._visit(client.id), client.borrowed():
                self._receive(client, state)
                scores[client.id] = self._score(client, state, validate)
        return scores

    @property
    def validates_received(self) -> bool:
        """Whether clients' held-out examples score what they would receive, not their own model."""
        evaluate = self.fed.job.evaluate
        return evaluate.validation > 0 and evaluate.validation_model == "received"

    @property
    def independent(self) -> bool:
        """Whether a client's own score depends on its model alone, not on the new server state."""
        return type(self.algorithm).predictor is Method.predictor

    def own(self, ks: Iterable[int], state: State) -> dict[int, Score]:
        """Return the scores after training of those of these clients that are in the cohort.

        They are those of `after`, before the server has a new state.
        """
        with self.fed.store.undo_log.set_recording(False):
            ours = sorted(filter(self._has_weights, self.cohort.intersection(ks)))
            validate = not self.validates_received
            return {client.id: self._score(client, state, validate) for client in self._mine(ours)}

    def note_changes(self, cohort: list[int]) -> None:
        """Mark the scores that the method's round has made stale."""
        fed = self.fed
        trained = (k for k, did in fed.tallies.items() if did.examples and k in fed.clients)
        changed = [*cohort, *trained]
        self.stale[slice(None) if cohort and fed.store.stateless else changed] = True

    def after(self, ks: Iterable[int], state: State) -> dict[int, Score]:
        """Return the scores, after a round, of those of these clients whose model has changed.

        If clients keep nothing between rounds, all of them are scored: those that worked in the
        round with their own models, the others with the model that the server would send.
        """
        scores, stateless = {}, self.fed.store.stateless
        for client in self._mine(k for k in ks if stateless or self.stale[k]):
            with self._visit(client.id):
                idle = stateless and client.id not in self.cohort
                if idle or not self._has_weights(client.id):
                    self._receive(client, state)
                scores[client.id] = self._score(client, state, not self.validates_received)
        return scores

    def _has_weights(self, k: int) -> bool:
        """Return whether client k has weights of its own now."""
        store = self.fed.store
        return not store.stateless or k in store.weighted

    def after_last_round(
        self,
        state: State,
        t: int,
        adapt: Callable[[Federation, Client, int], None] | None = None,
        received_only: bool = False,
    ) -> Row:
        """Return all clients' scores, own and received, after the method has finished; collective.

        The clients are those that the last evaluated round evaluated; if they are not all,
        `clients` has their numbers. {} if there are none.
        t: number of rounds done.
        received_only: return no scores of the clients' own models, which are those of the round.
        adapt: (fed, client, last round); adapts the model with which a client predicts, before it
        is evaluated. None: models stay as they are.
        """
        self._t = t
        personal: Scores = {}
        received: Scores = {}
        for client in self._mine(self.clients_to_evaluate(self.last_cohort)):
            if adapt:
                personal[client.id] = self._adapted(client, state, adapt)
            elif not received_only:
                with self._visit(client.id):
                    if not self._has_weights(client.id):
                        self._receive(client, state)
                    personal[client.id] = self._score(client, state)
            received |= self.received([client.id], state)
        self.fed.exchange.wait("last scores")
        waiting = self.fed.comm.gather({self.fed.comm.rank: self.fed.warnings.waiting})
        self.fed.warnings.print_all([waiting[rank] for rank in sorted(waiting)])
        phases = {"_received": received} if received_only else {"": personal, "_received": received}
        every = self.fed.comm.gather(
            {k: [value for scores in phases.values() for value in scores[k][:3]] for k in received}
        )
        if not every:
            return {}
        table = np.array(list(every.values()), dtype=float)  # [n, 3 per phase]
        main = self.fed.task.main
        names = [f"{name}{phase}" for phase in phases for name in (main, "loss", "one_class")]
        last = dict(zip(names, table.T, strict=True))
        ids = np.array([*every], dtype=np.int64)
        scores = {phase: last[f"{main}{phase}"] for phase in phases}
        if not self.fed.task.has_classes:
            last = {name: v for name, v in last.items() if not name.startswith("one_class")}
        measured = self.metrics.gather(phases)
        self.metrics.note_end({phase or "_final": of for phase, of in measured.items()})
        row = self.metrics.row(ids, measured, scores)
        if len(ids) < self.fed.K:
            last["clients"] = ids
        return last | {name.partition("/")[2]: np.atleast_1d(v) for name, v in row.items()}

    def unseen(self, ks: Iterable[int], state: State) -> dict[int, float]:
        """Return the scores on the domain on which no client trains, as `elsewhere` does."""
        fed, test = self.fed, self.fed.data.unseen
        if test is None:
            return {}
        mine = test.of_rank(fed.comm.rank, fed.comm.size, fed.job.evaluate.batch)
        return self.elsewhere(ks, state, lambda: mine, lambda client: test)

    def attacked(self, ks: Iterable[int], state: State) -> dict[int, float]:
        """Return the success of an attack, as `elsewhere` does: on the examples that it aims at.

        {}: it aims at none.
        """
        fed, attack = self.fed, self.fed.attack
        if attack is None or not attack.targeted:
            return {}
        return self.elsewhere(
            ks,
            state,
            lambda: attack.of_success(fed),
            lambda client: attack.of_success(fed, client),
        )

    def elsewhere(
        self,
        ks: Iterable[int],
        state: State,
        common: Callable[[], Shard],
        test_of: Callable[[Client], Shard],
    ) -> dict[int, float]:
        """Return the scores on other examples than the clients' tests, by client; collective.

        If the server has one complete model it is that of this model, under the key SERVER. Else
        each of these clients is scored, with its own model, or with what it would receive if
        clients keep nothing.
        common: makes this rank's part of the examples for the server's model.
        test_of: makes those of a client.
        """
        fed = self.fed
        if has_server_model(self.algorithm, fed):
            return {SERVER: score_common(self.algorithm, fed, state, test=common())}
        scores = {}
        for client in self._mine(ks):
            with self._visit(client.id), client.borrowed():
                if fed.store.stateless:
                    self._receive(client, state)
                with self._predictor(client, state) as predict:
                    scores[client.id] = score_on(fed, client, predict, test_of(client))
        fed.exchange.wait("scores on other examples")
        return fed.comm.gather(scores)

    def elsewhere_row(self, name: str, ids: np.ndarray, scores: Mapping[int, float]) -> Row:
        """Return the columns of scores of `elsewhere`: their mean, and those of these clients."""
        finite = [value for value in scores.values() if np.isfinite(value)]
        row: Row = {f"rounds/{name}": float(np.mean(finite)) if finite else float("nan")}
        if scores and SERVER not in scores:
            row[f"clients/{name}"] = np.array([scores.get(k, np.nan) for k in ids.tolist()])
        return row

    def rows_elsewhere(
        self, ids: np.ndarray, unseen: Mapping[int, float], attacked: Mapping[int, float]
    ) -> Row:
        """Return the columns of the domain on which no client trains, and of an attack."""
        row: Row = {}
        if self.fed.data.unseen is not None:
            row |= self.elsewhere_row(f"{self.fed.task.main}_unseen", ids, unseen)
        if self.fed.attack is not None and self.fed.attack.targeted:
            row |= self.elsewhere_row("attack_success", ids, attacked)
        if self.attackers:
            row["clients/attacker"] = np.isin(ids, list(self.attackers))
        return row

    def update(self, ids: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        """Store the new scores of a round's record."""
        # a metric may be undefined for a client that has a loss
        fresh = np.isfinite(columns["metric"]) | np.isfinite(columns["loss"])
        self.scores[ids[fresh], 0] = columns["metric"][fresh]
        self.scores[ids[fresh], 1] = columns["loss"][fresh]
        self.scores[ids[fresh], 2] = columns["one_class"][fresh]
        self.stale[ids] = (self.stale[ids] | (columns["examples"] > 0)) & ~fresh

    def fill_in(
        self, ids: np.ndarray, columns: dict[str, np.ndarray], evaluated: Iterable[int]
    ) -> None:
        """Fill in the last scores of the evaluated clients; nan for those that have trained since.

        Scores of other clients, of earlier rounds, are nan too, so that a round's means are those
        of the clients that the job's evaluate.clients says.
        """
        valid = np.isin(ids, list(evaluated)) & ~self.stale[ids]
        columns["metric"], columns["loss"], columns["one_class"] = np.where(
            valid, self.scores[ids].T, np.nan
        )

    def measure(
        self,
        ids: np.ndarray,
        columns: Row,
        phases: Mapping[str, Scores],
        validated: Scores,
        due: bool,
        evaluated: Collection[int],
    ) -> Row:
        """Return the metrics of these clients, and those pooled over the evaluated; collective.

        columns: of these clients, with the main metric of each phase.  phases: this rank's scores.
        validated: those of them with scores of held-out examples.
        due: whether the round is evaluated; if not, all metrics are nan.
        evaluated: the clients that are evaluated in this round; the metrics of others are nan.
        """
        measured = self.metrics.gather(phases) if due else {phase: {} for phase in phases}
        self.metrics.update(measured[""], self.stale)
        if due:
            self.metrics.keep_only(evaluated)
            self.metrics.note_end({"_received": measured["_received"]})
        scores = {phase: columns[f"metric{phase}"] for phase in phases}
        last = {"": self.metrics.last if due else {}}
        row = self.metrics.row(ids, {**measured, **last}, scores)
        stale = np.ones_like(self.stale) if self.validates_received else self.stale
        return row | self.metrics.validate(ids, validated, stale, evaluated)

    def forget(self, *ks: int) -> None:
        """Free the weights of these clients if clients keep nothing between rounds."""
        if self.fed.store.stateless:
            self.fed.store.drop(*ks)

    def _mine(self, ks: Iterable[int]) -> Iterator[Client]:
        """Yield this rank's clients among these, with their architectures in this round."""
        for client in (self.fed.clients[k] for k in ks if k in self.fed.clients):
            client.architecture = architecture(self.algorithm, self.fed, client.id, self._t)
            self.fed.clock.heartbeat.visit(str(client.id))
            yield client
            self.fed.clients.trim(keep=self.cohort)

    @contextmanager
    def _visit(self, k: int) -> Iterator[None]:
        """Drop the weights of client k afterwards if it had none before."""
        store = self.fed.store
        new = k not in store.weighted and (store.stateless or k not in self.cohort)
        yield
        # a repeated round needs the weights of clients whose work is done
        if new or (store.stateless and not self.fed.replay.turns(k)):
            store.drop(k)

    def _receive(self, client: Client, state: State) -> None:
        """Load the model with which the client would start a round from this state."""
        server_state = self.state_of(client.id, state)
        with self.fed.seeded("receive", self._t, client.id):
            self.algorithm.receive(client, self.algorithm.offer(self.fed, client, server_state))

    def _adapted(
        self, client: Client, state: State, adapt: Callable[[Federation, Client, int], None]
    ) -> Score:
        """Return the score of the client's model after it has been adapted.

        The model is the client's own, or the one that the server would send if clients keep none;
        such a model is dropped afterwards.
        """
        fed = self.fed
        with self._visit(client.id), fed.seeded("adapt", self._t, client.id):
            if fed.store.stateless:
                self._receive(client, state)
            server_state = self.state_of(client.id, state)
            with draws(fed, client):
                predict = self.algorithm.predictor(fed, client, server_state)
            drops = fed.job.run.on_client_fault == "drop"
            before = client.skeleton.flat.clone() if drops else None
            try:
                adapt(fed, client, self._t - 1)
            except Exception as error:
                if before is None or not kind(error):
                    raise
                client.skeleton.load(before)
                _, _, message = str(error).splitlines()[0].partition(": ")
                fed.warnings.say(
                    f"{message}\n  it keeps its model and has no score after the adaptation, as "
                    f"run.on_client_fault = 'drop' has it"
                )
                return NONE
            with draws(fed, client):
                if predict is not client.model:
                    predict = self.algorithm.predictor(fed, client, server_state)
                result = score(fed, client, predict)
            self.save(client)
        return result

    def _score(self, client: Client, state: State, validate: bool = False) -> Score:
        """Return the score of the client's present model on its test set.

        validate: also score the examples that the client holds out.
        Changes of the model that the prediction needs are undone.
        """
        with (
            self.fed.seeded("score", self._t, client.id),
            self._predictor(client, state) as predict,
        ):
            return score(self.fed, client, predict, validate)

    @contextmanager
    def _predictor(self, client: Client, state: State) -> Iterator[Predict]:
        """Yield the function by which the client predicts with its present model."""
        if self.independent:
            yield client.model
            return
        with client.borrowed(), draws(self.fed, client), self.fed.stay_with_clients():
            server_state = self.state_of(client.id, state)
            yield self.algorithm.predictor(self.fed, client, server_state)


def merge_scores(phases: Mapping[str, Scores]) -> dict[int, tuple[float, ...]]:
    """Return main metric and loss of each client that has a score, phase after phase.

    The last value is the class that its own model predicts for all test examples.
    The values are nan for a phase in which the client was not scored.
    """
    scored = {k for scores in phases.values() for k in scores}
    return {
        k: (
            *(x for scores in phases.values() for x in scores.get(k, NONE)[:2]),
            phases[""].get(k, NONE).one_class,
        )
        for k in scored
    }
