"""The loop around the rounds: results, checkpoints, signals, progress."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.comm.agree import agreed
from hpcfed.engine import describe, events, saving
from hpcfed.engine.folder import prepare
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.saver import Saver
from hpcfed.engine.setup import World, federation, world
from hpcfed.errors import WriteError
from hpcfed.report.progress import Progress
from hpcfed.storage import checkpoint, names
from hpcfed.storage.results import FINAL, Results

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job

DONE, RESUME_ME = 0, 75  # exit statuses; 75 is EX_TEMPFAIL: saved, start again with --resume
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def run(job: Job, comm: Comm) -> int:
    """Run a job on these ranks; collective. Returns the exit status, DONE or RESUME_ME."""
    facts = world(job, comm)
    fed = federation(job, comm, facts)
    if job.dry_run:
        if comm.rank == 0:
            describe.plan(job, facts, fed)
        return DONE
    if comm.rank == 0:
        warn(comm.size, fed.placement)
    folder = prepare(job, comm)
    rounds = events.start(fed)
    if job.resume:
        saving.restore(rounds, job.resume)
    results = agreed(comm, lambda: open_results(job, folder, facts, rounds) if comm.rank == 0 else None)
    try:
        with Progress(job, folder, facts, active=comm.rank == 0) as progress:
            return Loop(rounds, folder, results, progress).run()
    finally:
        fed.store.kept.close()


def warn(ranks: int, placement: list[int]) -> None:
    """Say, also where the job is quiet, that ranks are left over: they compute nothing, and wait in each round."""
    idle = ranks - len(set(placement))
    if idle:
        say(f"{idle} of {ranks} ranks have no client and stay idle")


def open_results(job: Job, folder: Path, facts: World, rounds: Rounds) -> Results:
    """The result file: new, or that of the run that goes on, cut to the checkpoint's round."""
    header = describe.header(job, facts, rounds)
    if job.resume and rounds.t:
        checkpoint.drop_after(folder, rounds.t)
        results = Results.resume(folder, rounds.t, header)
        if results.source != results.path:
            say(f"{results.path}: damaged or missing; the run goes on with the copy in {results.source}")
        return results
    facts.partition.save(names.partition_file(folder))
    return Results(folder, header, describe.arrays(facts))


class Loop:
    """Round after round until the job's last, or until a signal asks to stop."""

    def __init__(self, rounds: Rounds, folder: Path, results: Results | None, progress: Progress):
        self.rounds, self.folder, self.results, self.progress = rounds, folder, results, progress
        self.job, self.comm = rounds.fed.job, rounds.fed.comm
        self.stop, self.saved_at, self.saved_t = False, time.monotonic(), rounds.t
        self.first = rounds.t
        self.saver = Saver(rounds, folder, results)
        self.refused = False  # the disk did not take the last write of the results

    def run(self) -> int:
        """All rounds that are left; collective. Returns the exit status."""
        with Signals(self), self.saver:
            while self.rounds.t < self.job.rounds:
                row, flags = self.rounds.step(self.flags)
                self.write(row)
                if self.saver.pending and not flags["writing"]:
                    self.settle()
                if self.due(flags):
                    self.save()
                if flags["stop"] and self.rounds.t < self.job.rounds:
                    return self.stopped()
                if self.job.run.rebalance and self.rounds.t - self.first == self.job.run.rebalance:
                    self.rebalance()
            if self.saved_t < self.rounds.t:
                self.save()
            self.settle(needed=True)
        self.conclude()
        self.finish()
        self.progress.finish(self.results)
        return DONE

    def stopped(self) -> int:
        """Stop between two rounds; the run can go on from its last checkpoint. Returns the exit status."""
        self.settle(needed=not self.saver.exists)
        self.progress.say(f"stopped by a signal after round {self.rounds.t}; continue with --resume {self.folder}")
        with suppress(WriteError):  # what the checkpoint needs of them is on disk
            self.finish()
        return RESUME_ME

    def finish(self) -> None:
        """One result file, without a journal beside it."""
        if self.results:
            self.results.finish()

    def conclude(self) -> None:
        """What the method does after the last round, recorded apart from the rounds: a run may be extended."""
        final = self.rounds.finish()
        if self.results and final:
            self.results.arrays |= {f"{FINAL}/{name}": column for name, column in final.items()}

    def rebalance(self) -> None:
        """Move clients by measured cost; collective."""
        self.progress.moved(self.rounds.rebalance())
        if self.results:
            self.results.header["placement"] = describe.placed(self.rounds)

    def flags(self) -> dict[str, bool]:
        """What this rank wants: to stop; to save, because of the time (rank 0 decides that); and whether it writes."""
        waited = (time.monotonic() - self.saved_at) / 60
        minutes = self.job.checkpoint.minutes
        save = bool(minutes) and self.comm.rank == 0 and waited >= minutes
        return {"stop": self.stop, "save": save, "writing": self.saver.writing}

    def due(self, flags: dict[str, bool]) -> bool:
        every = self.job.checkpoint.every
        return flags["stop"] or flags["save"] or bool(every and self.rounds.t % every == 0)

    def write(self, row: dict[str, Any]) -> None:
        """Record a round, on rank 0; what the disk refuses is written with a later round."""
        if not self.results:
            return
        self.results.append(row)
        try:
            self.results.write()
            self.refused = self.refused and self.results.stored < self.results.rounds
        except WriteError as error:
            if self.job.checkpoint.required:
                raise
            if not self.refused:
                say(f"{error}\n  results stay in memory, and are written as soon as that can be done")
            self.refused = True
        self.progress.round(self.rounds.t, row)

    def save(self) -> None:
        """Begin a checkpoint, after the one before."""
        self.settle()
        self.saver.start()
        self.saved_at, self.saved_t = time.monotonic(), self.rounds.t

    def settle(self, needed: bool = False) -> None:
        """Wait for the checkpoint that is on its way; WriteError where it fails, but is needed."""
        error = self.saver.finish() if self.saver.pending else ""
        if error and (needed or self.job.checkpoint.required):
            raise saving.everywhere(f"{error}\n  {self.rounds.fed.last_checkpoint}")
        if error and self.comm.rank == 0:
            last = self.rounds.fed.last_checkpoint
            say(f"no checkpoint of round {self.saver.about.rounds}: {error}\n"
                f"  the run goes on, and tries again when the next is due; {last}")  # fmt: skip


def say(text: str) -> None:
    """A warning, also where the job is quiet."""
    print(f"hpcfed: warning: {text}", file=sys.stderr, flush=True)


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
