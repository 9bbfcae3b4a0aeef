"""Synchronous rounds: cohort, evaluation before, the algorithm's round, evaluation after, one
record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.algorithms.base import keeps_weights
from hpcfed.core.payload import Tally
from hpcfed.engine import balance
from hpcfed.engine.attempts import Attempts
from hpcfed.engine.evaluation import Evaluation
from hpcfed.engine.record import COLUMNS, NOTHING, SMALL, Row, cells, peak_bytes, peak_device_bytes
from hpcfed.federation.federation import Federation
from hpcfed.federation.journal import WHY
from hpcfed.storage.columns import PHASES
from hpcfed.training import stacked
from hpcfed.training.evaluate import NONE

if TYPE_CHECKING:
    from hpcfed.algorithms.base import RoundBased, State


@dataclass(eq=False)
class Rounds(Attempts, Evaluation):
    """The state of a run between rounds, the same on all ranks, and the step from one round to the
    next.
    """

    fed: Federation
    algorithm: RoundBased
    state: State
    t: int = 0  # rounds done
    now: float = 0.0  # virtual seconds
    run_id: str = ""  # what names the run in its files; no result depends on it
    scores: np.ndarray = field(init=False)  # [K, 2], last accuracy and loss of each client
    stale: np.ndarray = field(init=False)  # [K], trained since its last score
    seconds: np.ndarray = field(
        init=False
    )  # [K], training seconds per example on a rank of speed 1; nan: not yet
    cohort: set[int] = field(default_factory=set, init=False)  # of this round, on this rank
    left: dict[int, dict] = field(default_factory=dict, init=False)  # the clients that failed in it
    rates: dict[str, float] = field(
        default_factory=dict, init=False
    )  # architecture -> seconds an example, the last

    def __post_init__(self) -> None:
        K = self.fed.K
        self.scores, self.stale = np.full((K, 2), np.nan), np.ones(K, dtype=bool)
        self.seconds = np.full(K, np.nan)
        self.kinds = {name: i for i, name in enumerate(sorted(set(self.fed.architectures)))}
        self.fed.store.stateless = not keeps_weights(self.algorithm, self.fed)
        self.fed.job = stacked.resolve_engine(self.fed, self.algorithm)
        self.fed.grouping = partial(stacked.groups, self.fed, self.algorithm)

    @property
    def placement(self) -> list[int]:
        return self.fed.placement

    def attempt(self, start: float, flags: Callable) -> tuple[Row, dict[str, bool]]:
        """One round, to its end or to an exception; collective."""
        fed, t = self.fed, self.t
        cohort = self.begin(t)
        self.cohort = {c.id for c in self.mine(cohort)}
        fed.pulse.expect(len(self.cohort))
        if fed.store.kept.away:
            fed.store.prefetch(k for k in self.next_clients() if k in fed.clients)
        due = (t + 1) % fed.job.evaluate.every == 0 or t + 1 == fed.job.rounds
        before = self.before(cohort) if due and fed.job.evaluate.before else {}
        judged, early = self.clients_to_evaluate(cohort) if due else [], {}
        if due and self.independent:
            fed.meanwhile = lambda: early.update(self.own(judged))
        if cohort:
            with fed.store.past.set_recording():
                self.advance(cohort, t)
        fed.meanwhile = lambda: None
        changed = [
            *cohort,
            *(k for k, did in fed.tally.items() if did.examples and k in fed.clients),
        ]
        self.stale[slice(None) if cohort and fed.store.stateless else changed] = True
        after = early | self.after(k for k in judged if k not in early)
        received = self.score_received(judged) if fed.job.evaluate.received else {}
        found = self.algorithm.columns(fed, self.state) if due else {}
        whole = {f"rounds/{n}": x for n, x in ({"accuracy_common": float("nan")} | found).items()}
        fed.wait("record", over=True)
        self.left = fed.journal.left
        fed.journal.clear()
        fed.store.past.clear()
        self.forget(*fed.store)
        fed.clients.trim()
        self.t += 1
        seen = {**before, **received, **after}
        scores: dict[int, tuple[float, ...]] = {
            k: (*before.get(k, NONE), *received.get(k, NONE), *after.get(k, NONE)) for k in seen
        }
        row, raised = self.record(start, cohort, scores, due, flags)
        return row | whole, raised

    def begin(self, t: int) -> list[int]:
        """Open the round, also again. Returns the clients that will report."""
        self.fed.journal.begin()
        cohort = self.fed.begin(
            t, self.algorithm.cohort(self.fed, t), self.algorithm.keeps_stragglers
        )
        if self.fed.store.stateless and self.fed.comm.size > 1:
            self.deal(cohort)
        return cohort

    def deal(self, cohort: list[int]) -> None:
        """Give each rank as much of the cohort as the others have, in whole groups; collective."""
        groups = self.fed.groups(cohort)
        costs, held = (
            [sum(self.estimate_costs(ks)) for ks in groups],
            [self.placement[ks[0]] for ks in groups],
        )
        new = balance.level(costs, held, self.fed.speeds)
        balance.move(self.fed, {k: rank for ks, rank in zip(groups, new, strict=True) for k in ks})

    def estimate_costs(self, ks: list[int]) -> list[float]:
        """Cost of these clients' next round: seconds as their architectures took last; before that,
        estimates.
        """
        kinds, sizes = [self.fed.architectures[k] for k in ks], [self.fed.sizes[k] for k in ks]
        if self.rates.keys() >= set(kinds):
            return [self.rates[kind] * n for kind, n in zip(kinds, sizes, strict=True)]
        return [self.fed.costs[k] for k in ks]

    def next_clients(self) -> list[int]:
        """The clients of the next round, as far as they are known."""
        return (
            self.algorithm.cohort(self.fed, self.t + 1) if self.t + 1 < self.fed.job.rounds else []
        )

    def advance(self, cohort: list[int], t: int) -> None:
        """What the method does in the round."""
        self.state = self.algorithm.round(self.fed, self.state, cohort, t)

    def elapse(self, ids: np.ndarray, cohort: list[int], columns: Row) -> Row:
        """Let virtual time pass: until the slowest has reported, or the deadline for which a lost
        one is waited.
        """
        lost, profiles, deadline = (
            self.fed.turnout.lost,
            self.fed.profiles,
            self.fed.job.system.deadline,
        )
        there = np.isin(ids, [*cohort, *lost])
        done = zip(
            ids[there].tolist(),
            *(columns[name][there] for name in ("work", "down", "up")),
            strict=True,
        )
        took = [profiles.seconds(*cells) for cells in done]
        self.now += max([*took, deadline or 0.0] if lost else took, default=0.0)
        return {"clients/reports": np.isin(ids, cohort).astype(np.int64)}

    def virtual(self) -> Row:
        """What a checkpoint keeps of virtual time."""
        return {"now": self.now}

    def go_on(self, kept: Row) -> None:
        """Continue from what `virtual` gave."""
        self.now = kept["now"]

    def record(
        self,
        start: float,
        cohort: list[int],
        scores: dict[int, tuple[float, ...]],
        evaluated: bool,
        flags: Callable,
    ) -> tuple[Row, dict[str, bool]]:
        """Gather what all clients and ranks did; collective."""
        fed = self.fed
        ours = {k for k in {**fed.tally, **scores} if k in fed.clients}
        mine: dict[int, Any] = {
            k: (*cells(fed.tally.get(k, Tally())), *scores.get(k, 3 * NONE)) for k in ours
        }
        peaks = {"peak_bytes": peak_bytes(), "peak_device_bytes": peak_device_bytes(fed.device)}
        mine[fed.K + fed.comm.rank] = {
            "clock": fed.clock.reset() | peaks,
            "flags": flags(),
            "unheard": fed.unheard,
        }
        every = fed.comm.gather(mine)
        ranks = [every[fed.K + r] for r in range(fed.comm.size)]
        fed.heard([r["unheard"] for r in ranks])
        ids = (
            np.arange(fed.K)
            if fed.K <= SMALL
            else np.array(sorted({*cohort, *(k for k in every if k < fed.K)}))
        )
        table = np.array(
            [every.get(k, NOTHING) for k in ids.tolist()], dtype=float
        )  # [len(ids), columns]
        row = self.row(ids, table, cohort, evaluated)
        row |= {
            f"ranks/{p}": np.array([r["clock"].get(p, 0.0) for r in ranks])
            for p in (*PHASES, *peaks)
        }
        row |= {"rounds/seconds": perf_counter() - start}
        return row, {name: any(r["flags"].get(name, False) for r in ranks) for name in flags()}

    def row(self, ids: np.ndarray, table: np.ndarray, cohort: list[int], evaluated: bool) -> Row:
        """These clients' part of a round's record; keeps scores and measured costs up to date."""
        columns = dict(zip(COLUMNS, table.T, strict=True))
        fresh = np.isfinite(columns["accuracy"])
        self.scores[ids[fresh]] = table[fresh, -2:]
        trained = columns["examples"] > 0
        self.stale[ids] = (self.stale[ids] | trained) & ~fresh
        fast = np.array([self.fed.speeds[self.placement[k]] for k in ids[trained].tolist()])
        self.seconds[ids[trained]] = (
            fast * columns["seconds"][trained] / columns["examples"][trained]
        )
        by_kind = defaultdict(list)
        for k in ids[trained].tolist():
            by_kind[self.fed.architectures[k]].append(self.seconds[k])
        self.rates |= {kind: float(np.median(seconds)) for kind, seconds in by_kind.items()}
        if evaluated:
            columns["accuracy"], columns["loss"] = np.where(
                self.stale[ids], np.nan, self.scores[ids].T
            )
        for name in ("examples", "down", "up"):
            columns[name] = columns[name].astype(np.int64)
        member, lost = (np.isin(ids, list(ks)) for ks in (cohort, self.fed.turnout.lost))
        row = {f"clients/{n}": c for n, c in columns.items()} | {
            "clients/cohort": member,
            "clients/lost": lost,
        }
        if self.fed.job.run.on_client_fault == "drop":
            row |= {"clients/fault": np.array([self.why(k) for k in ids.tolist()])}
        if len(ids) < self.fed.K:
            kinds = np.array(
                [self.kinds[self.fed.architectures[k]] for k in ids.tolist()], dtype=np.int64
            )
            row |= {"clients/id": ids, "clients/architecture": kinds}
        return row | self.elapse(ids, cohort, columns) | {"rounds/virtual_seconds": self.now}

    def why(self, k: int) -> int:
        """Why client k failed in this round, as the position in WHY; 0: it did not."""
        return max((WHY.index(kind) for kind, _ in self.left.get(k, {}).values()), default=0)

    def costs(self) -> list[float] | None:
        """Measured seconds of one epoch of each client; None until each has trained."""
        return (self.seconds * self.fed.sizes).tolist() if np.isfinite(self.seconds).all() else None

    def rebalance(self) -> int:
        """Move clients to ranks by measured cost where that pays; collective. Returns how many
        moved.
        """
        costs, fed = self.costs(), self.fed
        if costs is None:
            return 0
        better = balance.better(costs, self.placement, fed.speeds)
        moved = [k for k in range(fed.K) if better[k] != self.placement[k]]
        balance.move(fed, {k: better[k] for k in moved})
        return len(moved)
