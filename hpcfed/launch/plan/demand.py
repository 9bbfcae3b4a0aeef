"""Demand of a job for resources, independent of the cluster: work, memory, cohorts and traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation
    from hpcfed.launch.plan.costs import Costs

DRAWN = 5  # rounds whose cohorts stand for all
CELL = 40  # bytes of a number in the record of a round, about
COLUMNS = 13


@dataclass(frozen=True)
class Demand:
    """The demand of a job.

    kinds: [K], architectures.
    size: bytes of the weights of each architecture.
    stateless: whether clients keep no weights between rounds.
    train, evaluate: [K], seconds of a client in a round at speed 1.
    rest: likewise, of each client that takes part.
    server: seconds of a round on rank 0.
    cohorts: of some rounds, in groups that train on one rank.
    everybody: whether all clients are evaluated, instead of a cohort.
    values, arrays: of the averaged model; 0 if there is none.
    uploads: bytes that all ranks receive in that case.
    kept: [K], bytes in a checkpoint.
    rounds: of the run.
    due: share of rounds that evaluate.
    every: rounds from one checkpoint to the next.
    spread: of a client's seconds of training, relative to their mean.
    """

    kinds: tuple[str, ...]
    size: dict[str, int]
    stateless: bool
    train: np.ndarray
    evaluate: np.ndarray
    rest: float
    server: float
    cohorts: list[list[list[int]]]
    everybody: bool
    values: int
    arrays: int
    uploads: int
    kept: np.ndarray
    rounds: int
    due: float
    every: int
    spread: float = 0.0

    @property
    def record(self) -> int:
        """Bytes of all clients' rows in a round's record."""
        return CELL * COLUMNS * len(self.kinds)


def demand(fed: Federation, tests: np.ndarray, costs: Costs) -> Demand:
    """Return the demand of a federation on one rank.

    tests: [K], test examples of each client.
    """
    job, method, kinds = fed.job, fed.job.algorithm, fed.architectures
    size = {kind: 4 * fed.store.layout(kind).size for kind in sorted(set(kinds))}
    rates, n = np.array([costs.of(kind) for kind in kinds]), np.asarray(fed.sizes)
    passes = (
        n * job.local.epochs
        if job.local.steps is None
        else job.local.steps * np.minimum(n, job.local.batch)
    )
    cohorts = [method.cohort(fed, t) for t in range(min(job.rounds, DRAWN))]
    sent = [method.traffic(fed, k)[1] for k in cohorts[0]]
    values = 0 if method.gathers_uploads else max(sent) // 4
    stateless = fed.store.stateless
    return Demand(
        kinds=kinds,
        size=size,
        stateless=stateless,
        train=rates * passes,
        evaluate=costs.evaluate * rates * tests,
        rest=costs.rest,
        server=costs.server,
        cohorts=[fed.turns.grouping(cohort) for cohort in cohorts],
        everybody=everybody(fed),
        values=values,
        arrays=max(1, len(fed.shapes(method.shared))) if values else 0,
        uploads=0 if values else sum(sent),
        kept=np.zeros(len(kinds))
        if stateless
        else np.array([size[kind] for kind in kinds]) * (1 + moments(fed)),
        rounds=job.rounds,
        due=1 / job.evaluate.every,
        every=job.checkpoint.every or job.rounds,
        spread=costs.spread,
    )


def everybody(fed: Federation) -> bool:
    """Return whether a round also evaluates clients that did not train in it, by a shared model."""
    from hpcfed.engine.round_record import SMALL

    wanted = fed.job.evaluate.clients
    return fed.store.stateless and (wanted == "all" or (wanted == "auto" and fed.K <= SMALL))


def moments(fed: Federation) -> int:
    """Return the number of vectors, of the weights' size, that a client's optimiser keeps."""
    local = fed.job.local
    if not local.keep_optimiser:
        return 0
    return 2 if local.optimiser == "adam" else int(local.momentum > 0)
