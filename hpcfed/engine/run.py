"""The loop around the rounds: results, checkpoints, signals, progress."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.comm.agree import agreed
from hpcfed.engine import describe, events, saving
from hpcfed.engine.folder import prepare
from hpcfed.engine.recover import RESUME_ME, Course, surviving
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import World, federation, world
from hpcfed.report.progress import Progress
from hpcfed.storage import checkpoint, names
from hpcfed.storage.results import FINAL, Results

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job

DONE = 0  # exit status; recover.RESUME_ME is EX_TEMPFAIL: saved, start again with --resume
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def run(job: Job, comm: Comm) -> int:
    """Run a job on these ranks; collective. Returns the exit status."""
    return surviving(Course(job), comm, attempt)


def attempt(course: Course, comm: Comm) -> int:
    """The run from where it stands to its end, on these ranks; collective. Returns the exit status."""
    job = course.job
    facts = course.facts or world(job, comm)
    comm.confirm()
    course.facts = facts
    fed = federation(job, comm, facts)
    if job.dry_run:
        if comm.rank == 0:
            describe.plan(job, facts, fed)
        return DONE
    if comm.rank == 0:
        warn(comm.size, fed.placement)
    folder = prepare(job, comm, ours=course.begun)
    rounds = events.start(fed)
    try:
        course.restore(rounds, folder)
        known = course.rows
        results = agreed(comm, lambda: open_results(job, folder, facts, rounds, known) if comm.rank == 0 else None)
        course.begun = True
        with Progress(job, folder, facts, active=comm.rank == 0) as progress:
            return Loop(rounds, folder, results, progress, course).run()
    finally:
        fed.store.kept.close()


def warn(ranks: int, placement: list[int]) -> None:
    """Say, also where the job is quiet, that ranks are left over: they compute nothing, and wait in each round."""
    idle = ranks - len(set(placement))
    if idle:
        print(f"hpcfed: warning: {idle} of {ranks} ranks have no client and stay idle", file=sys.stderr)


def open_results(
    job: Job, folder: Path, facts: World, rounds: Rounds, known: dict[str, Any] | None = None
) -> Results:  # fmt: skip
    """The result file: new, or that of the run that goes on, cut to the round after which it does.

    known: rows that may not be on disk.
    """
    header = describe.header(job, facts, rounds)
    if rounds.t:
        checkpoint.drop_after(folder, rounds.t)
        return Results.resume(folder, rounds.t, header, known)
    facts.partition.save(names.partition_file(folder))
    return Results(folder, header, describe.arrays(facts))


class Loop:
    """Round after round until the job's last, or until a signal asks to stop."""

    def __init__(self, rounds: Rounds, folder: Path, results: Results | None, progress: Progress, course: Course):
        self.rounds, self.folder, self.results, self.progress = rounds, folder, results, progress
        self.job, self.comm = rounds.fed.job, rounds.fed.comm
        self.stop, self.saved_at, self.saved_t = False, time.monotonic(), course.saved
        self.course = course
        self.first = rounds.t

    def run(self) -> int:
        """All rounds that are left; collective. Returns the exit status, when all ranks are through."""
        with Signals(self):
            self.copy()
            status = self.rest()
            self.comm.confirm()  # rank 0 writes to the end: were it to die there, the others are still here to go on
        return status

    def rest(self) -> int:
        """What `run` does but for the beginning and the end."""
        while self.rounds.t < self.job.rounds:
            row, flags = self.rounds.step(self.flags)
            self.comm.confirm()
            self.copy(row)  # first: from here on the round is finished, whoever dies
            self.write(row)
            self.course.reached = self.rounds.t
            if self.due(flags):
                self.save()
            if flags["stop"] and self.rounds.t < self.job.rounds:
                self.progress.say(f"stopped by a signal after round {self.rounds.t}; continue with "
                                  f"--resume {self.folder}")  # fmt: skip
                return RESUME_ME
            if self.job.run.rebalance and self.rounds.t - self.first == self.job.run.rebalance:
                self.rebalance()
        if self.saved_t < self.rounds.t:
            self.save()
        self.conclude()
        self.progress.finish(self.results)
        return DONE

    def conclude(self) -> None:
        """What the method does after the last round, recorded apart from the rounds: a run may be extended."""
        final = self.rounds.finish()
        if self.results and final:
            self.results.arrays |= {f"{FINAL}/{name}": column for name, column in final.items()}
            self.results.write(force=True)

    def rebalance(self) -> None:
        """Move clients by measured cost; collective."""
        self.progress.moved(self.rounds.rebalance())
        if self.results:
            self.results.header["placement"] = describe.placed(self.rounds)

    def flags(self) -> dict[str, bool]:
        """What this rank wants: to stop; to save, because of the time (rank 0 decides that)."""
        waited = (time.monotonic() - self.saved_at) / 60
        minutes = self.job.checkpoint.minutes
        return {"stop": self.stop, "save": bool(minutes) and self.comm.rank == 0 and waited >= minutes}

    def due(self, flags: dict[str, bool]) -> bool:
        every = self.job.checkpoint.every
        return flags["stop"] or flags["save"] or bool(every and self.rounds.t % every == 0)

    def write(self, row: dict[str, Any]) -> None:
        """Record a round, on rank 0."""
        if self.results:
            self.results.append(row)
            self.results.write()
            self.progress.round(self.rounds.t, row)

    def copy(self, row: dict[str, Any] | None = None) -> None:
        """Let the ranks copy what they hold into one another's memory, where they do. row: that of the last round."""
        if self.course.mirror:
            rows = self.results.unwritten() if self.results else {}
            self.course.mirror.take(self.rounds, rows | ({str(self.rounds.t - 1): row} if row and self.results else {}))

    def save(self) -> None:
        """Results first, so that they are never behind the checkpoint."""
        if self.results:
            self.results.write(force=True)
        saving.save(self.rounds, self.folder)
        self.saved_at, self.saved_t = time.monotonic(), self.rounds.t


class Signals:
    """While active, SIGTERM, SIGUSR1 and SIGINT ask the loop to save and stop after this round."""

    def __init__(self, loop: Loop):
        self.loop = loop

    def __enter__(self) -> None:
        self.before = {s: signal.signal(s, self.ask) for s in SIGNALS}

    def __exit__(self, *_: object) -> None:
        for s, handler in self.before.items():
            signal.signal(s, handler)

    def ask(self, *_: object) -> None:
        self.loop.stop = True
