"""A user's own method, tried on a few examples before the run: what is wrong with a hook is told
before anything is trained, also of hooks that come last.

Two clients, a handful of examples, two rounds, evaluation, and what follows the last round, in a
federation of its own on one rank. Nothing of it stays. A method may not suit so small a world, so
only that counts as a mistake which the size cannot cause; all else shows in the run itself.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from hpcfed.comm import Serial
from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.config.edges import Edges
from hpcfed.config.evaluate import Evaluate
from hpcfed.config.parts import Run
from hpcfed.config.system import System
from hpcfed.core import rng, user_code
from hpcfed.data.partition import Partition
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import federation

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.federation.world import World

CLIENTS, EXAMPLES, BATCH = 2, 8, 4
# of features that do not fit, or types, in torch's words
TORCH = re.compile(r"shapes cannot be multiplied|same dtype|scalar type|Expected .*[Dd]type")
PLAIN = (AttributeError, ImportError, NameError, NotImplementedError, TypeError, ValidationError)


def rehearse(job: Job, comm: Comm, facts: World) -> None:
    """Try a user's own method; collective. Raises OwnError on all ranks alike.

    Nothing is done for methods of hpcfed, and for populations, whose clients make their examples.
    """
    if ":" in job.algorithm.name and not facts.many:
        on_all_ranks(comm, lambda: attempt(job, facts) if comm.rank == 0 else None)


def attempt(job: Job, facts: World) -> None:
    """All that a run does, once. Raises OwnError."""
    with rng.scoped(job.seed, "rehearsal"):  # what a user draws from torch's generator
        try:
            perform(shorten_job(job), small(facts))
        except user_code.OwnError:
            raise
        except Exception as error:
            theirs = user_code.explain_error(error)
            if theirs and certain(error):
                raise user_code.OwnError(theirs) from error


def certain(error: Exception) -> bool:
    """Whether an exception cannot come of so few clients, examples and rounds."""
    if isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError):
        return bool(TORCH.search(str(error)))
    return isinstance(error, PLAIN) and "NoneType" not in str(error)


def perform(job: Job, facts: World) -> None:
    fed = federation(job, Serial(), facts)
    fed.warnings.quiet = True
    try:
        rounds = Rounds(fed)
        for _ in range(job.rounds):
            rounds.step()
        rounds.finish()
    finally:
        fed.store.close()


def shorten_job(job: Job) -> Job:
    """The job with little to do, on clients that are always there."""
    local = {"batch": min(BATCH, job.local.batch), "epochs": 1, "stragglers": 0.0}
    if job.local.steps:
        local["steps"] = min(2, job.local.steps)
    kept = {name: getattr(job.run, name) for name in ("device", "threads", "precision")}
    return job.model_copy(
        update={
            "rounds": 2,
            "clients": min(CLIENTS, job.clients),
            "participation": 1.0,
            "local": job.local.model_copy(update=local),
            "training": job.training.model_copy(update={"engine": "eager"}),
            "evaluate": job.evaluate.model_copy(
                update={"every": 1, "batch": min(Evaluate().batch, EXAMPLES)}
            ),
            "system": System(),
            "edges": Edges(),
            "run": Run(**kept),
        }
    )


def small(facts: World) -> World:
    """The first clients, with their first examples, and the first of the test split."""
    n = min(CLIENTS, len(facts.architectures))
    test = facts.data.test.take(slice(EXAMPLES))
    everyone = tuple(np.arange(len(test.y)) for _ in range(n))
    train = tuple(rows[:EXAMPLES] for rows in facts.partition.train[:n])
    return replace(
        facts,
        data=replace(facts.data, test=test),
        partition=Partition(train, everyone, facts.partition.public[:EXAMPLES]),
        public=facts.public[:EXAMPLES],
        architectures=facts.architectures[:n],
        costs=facts.costs[:n],
        edges=None,
    )
