"""Synchronous rounds: cohort, evaluation before, the algorithm's round, evaluation after, one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.engine import balance
from hpcfed.engine.record import COLUMNS, PHASES, Row, cells, peak_bytes
from hpcfed.evaluate import NONE, Score, common, score
from hpcfed.federation import Federation

if TYPE_CHECKING:
    from hpcfed.algorithms.base import RoundBased, State
    from hpcfed.client import Client


@dataclass(eq=False)
class Rounds:
    """The state of a run between rounds, the same on all ranks, and the step from one round to the next."""

    fed: Federation
    algorithm: RoundBased
    state: State
    t: int = 0  # rounds done
    now: float = 0.0  # virtual seconds
    scores: np.ndarray = field(init=False)  # [K, 2], last accuracy and loss of each client
    stale: np.ndarray = field(init=False)  # [K], trained since its last score
    seconds: np.ndarray = field(init=False)  # [K], training seconds per example, measured; nan: not yet

    def __post_init__(self) -> None:
        K = self.fed.K
        self.scores, self.stale = np.full((K, 2), np.nan), np.ones(K, dtype=bool)
        self.seconds = np.full(K, np.nan)
        self.fed.store.stateless = not self.algorithm.keeps(self.fed)

    @property
    def placement(self) -> list[int]:
        return self.fed.placement

    def step(self, flags: Callable[[], dict[str, bool]] = dict) -> tuple[Row, dict[str, bool]]:
        """One round; collective. Returns its record and the flags that any rank raised, the same on all ranks."""
        start, fed, t = perf_counter(), self.fed, self.t
        cohort = self.begin(t)
        for k, client in fed.clients.items():
            client.architecture = self.algorithm.architecture(fed, k, t)
        due = (t + 1) % fed.job.evaluate.every == 0 or t + 1 == fed.job.rounds
        before = self.received(cohort) if due and fed.job.evaluate.before else {}
        if cohort:
            self.advance(cohort, t)
        self.stale[[*cohort, *(k for k in fed.clients if fed.tally[k].examples)]] = True
        after = self.after(cohort) if due else {}
        received = self.received(list(fed.clients)) if due and fed.job.evaluate.received else {}
        whole = self.common() if due and fed.job.evaluate.common else {"rounds/accuracy_common": float("nan")}
        whole |= {f"rounds/{n}": x for n, x in (self.algorithm.columns(fed, self.state) if due else {}).items()}
        self.forget(*fed.clients, fed.K)
        self.t += 1
        scores = {k: (*before.get(k, NONE), *received.get(k, NONE), *after.get(k, NONE)) for k in fed.clients}
        row, raised = self.record(start, cohort, scores, due, flags)
        return row | whole, raised

    def begin(self, t: int) -> list[int]:
        """Open the round. Returns the clients that will report."""
        return self.fed.begin(t, self.algorithm.cohort(self.fed, t), self.algorithm.keeps_stragglers)

    def advance(self, cohort: list[int], t: int) -> None:
        """What the method does in the round."""
        self.state = self.algorithm.round(self.fed, self.state, cohort, t)

    def elapse(self, cohort: list[int], columns: Row) -> Row:
        """Let virtual time pass: until the slowest has reported, or the deadline for which a lost one is waited."""
        lost, profiles, deadline = self.fed.turnout.lost, self.fed.profiles, self.fed.job.system.deadline
        done = zip(*(columns[name] for name in ("work", "down", "up")), strict=True)
        took = [profiles.seconds(k, *cells) for k, cells in enumerate(done) if k in cohort or k in lost]
        self.now += max([*took, deadline or 0.0] if lost else took, default=0.0)
        return {"clients/reports": np.isin(np.arange(self.fed.K), cohort).astype(np.int64)}

    def virtual(self) -> Row:
        """What a checkpoint keeps of virtual time."""
        return {"now": self.now}

    def go_on(self, kept: Row) -> None:
        """Continue from what `virtual` gave."""
        self.now = kept["now"]

    def received(self, cohort: list[int]) -> dict[int, Score]:
        """These clients' models as they would start into a round with the state of now; leaves them as they are."""
        scores = {}
        for client in self.fed.mine(cohort):
            with client.borrowed():
                self.receive(client)
                scores[client.id] = self.score(client)
            self.forget(client.id)
        return scores

    def after(self, cohort: list[int]) -> dict[int, Score]:
        """All clients whose model changed: the cohort's own, or where clients keep nothing the global model."""
        scores, stateless = {}, self.fed.store.stateless
        for k, client in self.fed.clients.items():
            if stateless and k not in cohort:
                self.receive(client)
            if stateless or self.stale[k]:
                scores[k] = self.score(client)
                self.forget(k)
        return scores

    def receive(self, client: Client) -> None:
        """Make the client's model the one that it would start into a round with now."""
        self.algorithm.receive(client, self.algorithm.offer(self.fed, client, self.state))

    def score(self, client: Client) -> Score:
        """The client's model as it is, on its test set; what adapting to it changes is undone."""
        with self.algorithm.adapted(self.fed, client, self.state, self.t):
            return score(self.fed, client, partial(self.algorithm.predict, self.fed, client, self.state))

    def finish(self) -> Row:
        """What the method does after the last round, and all clients' scores then; nothing if it does nothing."""
        self.fed.open(self.t - 1)  # a run that is resumed at its end has had no round
        state = self.algorithm.finish(self.fed, self.state, self.t - 1)
        if state is None:
            return {}
        self.state = state
        mine = {c.id: (*self.score(c), *self.received([c.id])[c.id]) for c in self.fed.clients.values()}
        table = np.array(list(self.fed.comm.gather(mine).values()), dtype=float)  # [K, 4]
        return dict(zip(("accuracy", "loss", "accuracy_received", "loss_received"), table.T, strict=True))

    def forget(self, *ks: int) -> None:
        """Where clients keep nothing between rounds, free what they hold."""
        if self.fed.store.stateless:
            self.fed.store.drop(*ks)

    def common(self) -> Row:
        """The server's model on the whole test split, and its sub-models; nan where the server has no whole model."""
        pooled, row = self.fed.pooled(), {"rounds/accuracy_common": float("nan")}
        whole = pooled.architecture
        for architecture in (*self.algorithm.levels(self.fed), whole):
            pooled.architecture = architecture
            if not self.algorithm.common(self.fed, pooled, self.state):
                break
            right = common(self.fed, partial(self.algorithm.predict, self.fed, pooled, self.state))
            row[f"rounds/accuracy_common{architecture.removeprefix(whole)}"] = right
        return row

    def record(
        self, start: float, cohort: list[int], scores: dict[int, tuple[float, ...]], evaluated: bool, flags: Callable
    ) -> tuple[Row, dict[str, bool]]:
        """Gather what all clients and ranks did; collective."""
        fed, tally = self.fed, self.fed.tally
        mine: dict[int, Any] = {k: (*cells(tally[k]), *scores[k]) for k in fed.clients}
        fed.wait()
        mine[fed.K + fed.comm.rank] = {"clock": fed.clock.reset(), "peak": peak_bytes(), "flags": flags()}
        every = fed.comm.gather(mine)
        ranks = [every[fed.K + r] for r in range(fed.comm.size)]
        table = np.array([every[k] for k in range(fed.K)], dtype=float)  # [K, columns]
        row = self.row(table, cohort, evaluated)
        row |= {f"ranks/{p}": np.array([r["clock"].get(p, 0.0) for r in ranks]) for p in PHASES}
        row |= {"ranks/peak_bytes": np.array([r["peak"] for r in ranks]), "rounds/seconds": perf_counter() - start}
        return row, {name: any(r["flags"].get(name, False) for r in ranks) for name in flags()}

    def row(self, table: np.ndarray, cohort: list[int], evaluated: bool) -> Row:
        """The clients' part of a round's record; keeps scores and measured costs up to date."""
        columns = dict(zip(COLUMNS, table.T, strict=True))
        fresh = np.isfinite(columns["accuracy"])
        self.scores[fresh] = table[fresh, -2:]
        trained = columns["examples"] > 0
        self.stale = (self.stale | trained) & ~fresh
        self.seconds[trained] = columns["seconds"][trained] / columns["examples"][trained]
        if evaluated:
            columns["accuracy"], columns["loss"] = self.scores.T.copy()
        for name in ("examples", "down", "up"):
            columns[name] = columns[name].astype(np.int64)
        member, lost = (np.isin(np.arange(self.fed.K), list(ks)) for ks in (cohort, self.fed.turnout.lost))
        row = {f"clients/{n}": c for n, c in columns.items()} | {"clients/cohort": member, "clients/lost": lost}
        return row | self.elapse(cohort, columns) | {"rounds/virtual_seconds": self.now}

    def costs(self) -> list[float] | None:
        """Measured seconds of one epoch of each client; None until each has trained."""
        whole = self.seconds * np.array(self.fed.sizes)
        return whole.tolist() if np.isfinite(whole).all() else None

    def rebalance(self) -> int:
        """Move clients to ranks by measured cost where that pays; collective. Returns how many moved."""
        costs, fed = self.costs(), self.fed
        if costs is None:
            return 0
        better = balance.better(costs, self.placement, fed.comm.size)
        moved = [k for k in range(fed.K) if better[k] != self.placement[k]]
        for k in moved:
            fed.hand_over(k, self.placement[k], better[k])
        fed.placement = better
        return len(moved)
