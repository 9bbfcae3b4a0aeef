"""A trial of a user's own method on a few examples before the run.

It reports a mistake in a hook before anything is trained, also in the hooks that are called last.
The trial has two clients, a handful of examples and two rounds, evaluation, and the steps after the
last round, in a federation of its own on one rank. Nothing of it remains. A method may not suit so
small a federation, so only errors that the small size cannot cause count as mistakes. Any other
error appears in the run itself.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from hpcfed.algorithms.hook_check import users_classes
from hpcfed.comm import Serial
from hpcfed.config.edges import Edges
from hpcfed.config.evaluate import Evaluate
from hpcfed.config.sections import Run
from hpcfed.config.system import System
from hpcfed.core import rng, user_code
from hpcfed.core.errors import CheckpointError
from hpcfed.data.partition import Partition
from hpcfed.engine.fault_tolerance.snapshot import items
from hpcfed.engine.hook_effects import HookEffects, class_values
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import federation
from hpcfed.engine.watched_tests import describe_reads, watch_tests
from hpcfed.storage import tree

if TYPE_CHECKING:
    from hpcfed.config.job import Job
    from hpcfed.engine.world import World

CLIENTS, EXAMPLES, BATCH = 2, 8, 4
# torch's messages about features or types that do not fit
TORCH = re.compile(r"shapes cannot be multiplied|same dtype|scalar type|Expected .*[Dd]type")
PLAIN = (AttributeError, ImportError, NameError, NotImplementedError, TypeError, ValidationError)


def rehearse(job: Job, world: World) -> list[str]:
    """Try a user's own method in a short job, and return warnings about it.

    Nothing is done for methods of hpcfed, or for populations, whose clients make their examples.
    Raises OwnError for a mistake in the user's code.
    """
    if ":" not in job.algorithm.name or world.many:
        return []
    with rng.scoped_everywhere(job.seed, "rehearsal"):
        try:
            return perform(shorten_job(job), small(world))
        except user_code.OwnError:
            raise
        except Exception as error:
            theirs = user_code.explain_error(error)
            if theirs and certain(error):
                raise user_code.OwnError(theirs) from error
            return []


def certain(error: Exception) -> bool:
    """Return whether an exception cannot be due to so few clients, examples and rounds."""
    if isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError):
        return bool(TORCH.search(str(error)))
    return isinstance(error, PLAIN) and "NoneType" not in str(error)


def perform(job: Job, world: World) -> list[str]:
    """Run the job, and return warnings about its method's hooks."""
    fed = federation(job, Serial(), world)
    fed.warnings.quiet, lines = True, watch_tests(fed)
    effects, values = HookEffects(fed), class_values(job.algorithm)
    fed.transforms.insert(0, effects)
    try:
        with effects.refuse_blank_models():
            rounds = Rounds(fed)
            for _ in range(job.rounds):
                effects.begin(rounds.state)
                rounds.step()
                effects.refuse_changes()
            check_saved(rounds)
            rounds.finish()
    finally:
        fed.store.close()
    return [*effects.warnings(values), *describe_reads(lines)]


def check_saved(rounds: Rounds) -> None:
    """Raise OwnError for a value of the state or of a client's memory that cannot be saved."""
    for name, item in items(rounds):
        try:
            if name == "state":
                tree.check(item, "the server's state")
            elif name.startswith("clients/"):
                tree.check(item["memory"], "client.memory")
        except CheckpointError as error:
            cls = users_classes(type(rounds.algorithm))[0]
            raise user_code.OwnError(
                f"{user_code.line_of(cls)}: {cls.__name__}: {error}"
            ) from error


def shorten_job(job: Job) -> Job:
    """Return a short version of the job, with clients that always participate."""
    local = {"batch": min(BATCH, job.local.batch), "epochs": 1, "stragglers": 0.0}
    if job.local.steps:
        local["steps"] = min(2, job.local.steps)
    run = {name: getattr(job.run, name) for name in ("device", "threads", "precision")}
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
            "run": Run(**run),
        }
    )


def small(world: World) -> World:
    """Return the first clients with their first examples, and a small test split."""
    n = min(CLIENTS, len(world.architectures))
    test = world.data.test.take(slice(EXAMPLES))
    everyone = tuple(np.arange(len(test.y)) for _ in range(n))
    train = tuple(rows[:EXAMPLES] for rows in world.rows.train[:n])
    return replace(
        world,
        data=replace(world.data, test=test),
        partition=Partition(train, everyone, world.rows.public[:EXAMPLES]),
        public=world.public[:EXAMPLES],
        architectures=world.architectures[:n],
        costs=world.costs[:n],
        edges=None,
    )
