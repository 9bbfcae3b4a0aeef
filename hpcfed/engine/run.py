"""A run from a job to its end: what is set up before the loop of rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.comm.agree import agreed
from hpcfed.engine import describe, events, saving
from hpcfed.engine.folder import prepare
from hpcfed.engine.loop import DONE, Loop
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import World, federation, world
from hpcfed.report.progress import Progress
from hpcfed.storage import checkpoint, names
from hpcfed.storage.results import Results

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.federation import Federation


def run(job: Job, comm: Comm) -> int:
    """Run a job on these ranks; collective. Returns the exit status, loop.DONE or loop.RESUME_ME."""
    facts = world(job, comm)
    fed = federation(job, comm, facts)
    if job.dry_run:
        if comm.rank == 0:
            describe.plan(job, facts, fed)
        return DONE
    warn(fed)
    folder = prepare(job, comm)
    rounds = events.start(fed)
    if job.resume:
        saving.restore(rounds, job.resume)
    results = agreed(comm, lambda: open_results(job, folder, facts, rounds) if comm.rank == 0 else None)
    try:
        with Progress(job, folder, facts, active=comm.rank == 0) as progress:
            return Loop(rounds, folder, results, progress).run()
    finally:
        fed.store.close()


def warn(fed: Federation) -> None:
    """Say, also where the job is quiet, that ranks are left over: they compute nothing, and wait in each round."""
    idle = fed.comm.size - len(set(fed.placement))
    if idle:
        fed.say(f"warning: {idle} of {fed.comm.size} ranks have no client and stay idle")


def open_results(job: Job, folder: Path, facts: World, rounds: Rounds) -> Results:
    """The result file: new, or that of the run that goes on, cut to the checkpoint's round."""
    header = describe.header(job, facts, rounds)
    if job.resume and rounds.t:
        checkpoint.drop_after(folder, rounds.t)
        results = Results.resume(folder, rounds.t, header)
        if results.source != results.path:
            rounds.fed.say(f"warning: {results.path}: damaged or missing; the run goes on with the copy in "
                           f"{results.source}")  # fmt: skip
        return results
    facts.partition.save(names.partition_file(folder))
    return Results(folder, header, describe.arrays(facts))
