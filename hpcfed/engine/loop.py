"""The loop around the rounds: results, checkpoints, signals."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.cluster.pulse import Pulse, Stopped
from hpcfed.engine import describe, saving
from hpcfed.engine.saver import Saver
from hpcfed.engine.watchdog import Watchdog
from hpcfed.errors import WriteError
from hpcfed.storage.results import FINAL, Results

if TYPE_CHECKING:
    from hpcfed.engine.rounds import Rounds
    from hpcfed.report.progress import Progress

DONE, RESUME_ME = 0, 75  # exit statuses; 75 is EX_TEMPFAIL: saved, start again with --resume
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Loop:
    """Round after round until the job's last, or until a signal asks to stop."""

    def __init__(self, rounds: Rounds, folder: Path, results: Results | None, progress: Progress):
        self.rounds, self.folder, self.results, self.progress = rounds, folder, results, progress
        self.job, self.comm = rounds.fed.job, rounds.fed.comm
        self.saved_at, self.saved_t, self.first = time.monotonic(), rounds.t, rounds.t
        self.saver = Saver(rounds, folder, results)

    def run(self) -> int:
        """All rounds that are left; collective. Returns the exit status."""
        pulse, settings = self.rounds.fed.pulse, self.job.run
        watchdog = Watchdog(pulse, self.comm.rank, self.comm.size, self.folder, settings.watchdog)
        with Signals(pulse, settings.grace / 2), watchdog, self.saver:
            try:
                return self.go_on()
            except Stopped:
                if self.rounds.t < self.job.rounds:
                    self.save()
                return self.stopped()

    def go_on(self) -> int:
        """The rounds, and what follows the last; raises Stopped on all ranks where a signal ends that."""
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
        """The run ends for a signal, with all saved that is done. Returns the exit status."""
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
        final = self.rounds.together(self.rounds.finish)
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
        return {"stop": self.rounds.fed.pulse.asked, "save": save, "writing": self.saver.writing}

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
        except WriteError as error:
            if self.job.checkpoint.required:
                raise
            self.warn(f"{error}\n  results stay in memory, and are written as soon as that can be done")
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
        if error:
            last = self.rounds.fed.last_checkpoint
            self.warn(f"no checkpoint of round {self.saver.about.rounds}: {error}\n"
                      f"  the run goes on, and tries again when the next is due; {last}")  # fmt: skip

    def warn(self, text: str) -> None:
        """Say it, also where the job is quiet."""
        self.rounds.fed.say(f"warning: {text}")


class Signals:
    """While active, SIGTERM, SIGUSR1 and SIGINT ask this rank to stop: clients in hand have so many seconds."""

    def __init__(self, pulse: Pulse, seconds: float):
        self.pulse, self.seconds = pulse, seconds

    def __enter__(self) -> None:
        self.before = {s: signal.signal(s, self.ask) for s in SIGNALS}

    def __exit__(self, *_: object) -> None:
        for s, handler in self.before.items():
            signal.signal(s, handler)

    def ask(self, *_: object) -> None:
        self.pulse.ask(self.seconds)
