"""Which clients a round evaluates, and with which model; nothing here changes what is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from hpcfed.algorithms.base import Method, architecture
from hpcfed.core import rng
from hpcfed.engine.record import SMALL, Row
from hpcfed.training.evaluate import NONE, Score, score

if TYPE_CHECKING:
    from hpcfed.algorithms.base import RoundBased, State
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation


class Evaluation:
    """The part of a run's rounds that evaluates."""

    fed: Federation
    algorithm: RoundBased
    state: State
    t: int
    stale: np.ndarray
    cohort: set[int]

    def mine(self, ks: Iterable[int]) -> Iterator[Client]:
        """This rank's clients among these, one after the other, with the architectures of this
        round.
        """
        for client in (self.fed.clients[k] for k in ks if k in self.fed.clients):
            client.architecture = architecture(self.algorithm, self.fed, client.id, self.t)
            self.fed.pulse.visit(str(client.id))
            yield client
            self.fed.clients.trim(keep=self.cohort)

    def clients_to_evaluate(self, cohort: list[int]) -> Iterable[int]:
        """The clients that are evaluated after a round."""
        K, wanted = self.fed.K, self.fed.job.evaluate.clients
        if wanted == "all" or (wanted == "auto" and K <= SMALL):
            return self.fed.clients
        if isinstance(wanted, int):
            return (
                rng.stream(self.fed.seed, "evaluated")
                .choice(K, min(wanted, K), replace=False)
                .tolist()
            )
        return cohort

    def score_received(self, ks: Iterable[int]) -> dict[int, Score]:
        """These clients' models as they would start into a round with the state of now; leaves them
        as they are.
        """
        scores = {}
        for client in self.mine(ks):
            with self.visit(client.id), client.borrowed():
                self.receive(client)
                scores[client.id] = self.score(client)
        return scores

    def before(self, cohort: Iterable[int]) -> dict[int, Score]:
        """What `received` gives for a cohort that has not been trained; of a client that has, what
        it gave then.
        """
        journal = self.fed.journal
        new = self.score_received(
            k for k in cohort if not journal.turns(k) and journal.of(k).before is None
        )
        for k, found in new.items():
            journal.of(k).before = found
        return {k: Score(*journal.of(k).before or NONE) for k in sorted(self.cohort)}

    def after(self, ks: Iterable[int]) -> dict[int, Score]:
        """Those of these whose model changed: the cohort's own, or where clients keep nothing the
        global model.
        """
        scores, stateless = {}, self.fed.store.stateless
        for client in self.mine(k for k in ks if stateless or self.stale[k]):
            with self.visit(client.id):
                if stateless and client.id not in self.cohort:
                    self.receive(client)
                scores[client.id] = self.score(client)
        return scores

    @property
    def independent(self) -> bool:
        """Whether a client's own score depends on its model alone, not on what the server makes of
        the round.
        """
        return type(self.algorithm).predictor is Method.predictor

    def own(self, ks: Iterable[int]) -> dict[int, Score]:
        """The scores of those of these that are in the cohort, after their training."""
        with self.fed.store.past.set_recording(False):
            return {c.id: self.score(c) for c in self.mine(sorted(self.cohort.intersection(ks)))}

    @contextmanager
    def visit(self, k: int) -> Iterator[None]:
        """Evaluation leaves no weights behind where there were none."""
        store = self.fed.store
        new = k not in store.weighted and k not in self.cohort
        yield
        if new or (
            store.stateless and not self.fed.journal.turns(k)
        ):  # a round begun again needs those of a turn
            store.drop(k)

    def receive(self, client: Client) -> None:
        """Make the client's model the one that it would start into a round with now."""
        self.algorithm.receive(client, self.algorithm.offer(self.fed, client, self.state))

    def score(self, client: Client) -> Score:
        """The client's model as it is, on its test set; what predicting needs of changes to it is
        undone.
        """
        if self.independent:
            return score(self.fed, client, client.model)
        with client.borrowed():
            predict = self.algorithm.predictor(self.fed, client, self.state)
            return score(self.fed, client, predict)

    def forget(self, *ks: int) -> None:
        """Where clients keep nothing between rounds, free what they hold."""
        if self.fed.store.stateless:
            self.fed.store.drop(*ks)

    def finish(self) -> Row:
        """What the method does after the last round, and all clients' scores then; nothing if it
        does nothing.
        """
        self.fed.open(self.t - 1)  # a run that is resumed at its end has had no round
        state = self.algorithm.finish(self.fed, self.state, self.t - 1)
        if state is None:
            return {}
        self.state = state
        judged = self.mine(self.clients_to_evaluate(self.fed.sample(self.t - 1)))
        mine = {c.id: (*self.score(c), *self.score_received([c.id])[c.id]) for c in judged}
        self.fed.wait("last scores")
        table = np.array(
            list(self.fed.comm.gather(mine).values()), dtype=float
        )  # [K, 4], or fewer rows
        return dict(
            zip(("accuracy", "loss", "accuracy_received", "loss_received"), table.T, strict=True)
        )
