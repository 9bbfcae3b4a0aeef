"""The loop around the rounds: results, checkpoints, and what ends it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.core.errors import WriteError
from hpcfed.core.status import DONE, RESUME_ME
from hpcfed.engine import describe
from hpcfed.engine.rounds import Rounds, stop_together
from hpcfed.engine.survival import saving
from hpcfed.engine.survival.saver import Saver
from hpcfed.machine.heartbeat import Stopped
from hpcfed.storage.record import FINISHED, STOPPED, Record
from hpcfed.storage.results import FINAL, Results

if TYPE_CHECKING:
    from hpcfed.engine.survival.recover import Course
    from hpcfed.report.progress import Progress
    from hpcfed.report.sinks.logs import Logs


class Loop:
    """Round after round until the job's last, or until a signal asks to stop."""

    def __init__(
        self,
        rounds: Rounds,
        folder: Path,
        results: Results | None,
        progress: Progress,
        course: Course,
        log: Logs | None = None,
    ):
        self.rounds, self.folder, self.results, self.progress, self.log = (
            rounds,
            folder,
            results,
            progress,
            log,
        )
        self.job, self.comm, self.course = rounds.fed.job, rounds.fed.comm, course
        self.saved_at, self.saved_t, self.first = time.monotonic(), course.saved, rounds.t
        self.saver = Saver(rounds, folder, results, exists=course.saved > 0)

    def run(self) -> int:
        """All rounds that are left; collective. Returns the exit status, when all ranks are
        through.
        """
        self.course.signals.heed()
        self.course.under_way()
        if self.results and not self.results.rounds:
            # so that it can be seen that it goes on, however long the first round takes
            self.record()
        with self.saver:
            self.copy()
            try:
                self.secure()
                status = self.go_on()
            except Stopped:
                self.comm.confirm()
                if self.rounds.t < self.job.rounds:
                    self.save()
                status = self.stop_for_signal()
            # rank 0 writes to the end: were it to die there, the others are still here to go on
            self.comm.confirm()
        return status

    def go_on(self) -> int:
        """The rounds, and what follows the last; raises Stopped on all ranks where a signal ends
        that.
        """
        while self.rounds.t < self.job.rounds:
            row, flags = self.rounds.step(self.flags)
            self.comm.confirm()
            self.copy(row)  # first: from here on the round is finished, whoever dies
            self.write(row)
            self.course.reached = self.rounds.t
            if self.saver.pending and not flags["writing"]:
                self.settle()
            if self.due(flags):
                self.save()
            if flags["stop"] and self.rounds.t < self.job.rounds:
                return self.stop_for_signal()
            if self.job.run.rebalance and self.rounds.t - self.first == self.job.run.rebalance:
                self.rebalance()
        if self.saved_t < self.rounds.t:
            self.save()
        unsaved = self.settle()
        self.conclude()
        return self.end_run(self.finish(STOPPED if unsaved else FINISHED) or unsaved)

    def stop_for_signal(self) -> int:
        """The run ends for a signal, with all saved that is done. Returns the exit status."""
        self.settle(needed=not self.saver.exists)
        self.progress.say(
            f"stopped by a signal after round {self.rounds.t}; continue with --resume {self.folder}"
        )
        self.finish(STOPPED)  # where that is refused: what the checkpoint needs of them is on disk
        return RESUME_ME

    def finish(self, ended: str) -> str:
        """One result file, without a journal beside it, that says how the run ended; collective.

        Returns why the disk refused that, "" if not.
        """

        def refused() -> str:
            self.results.header["ended"] = ended
            try:
                self.results.finish()
            except WriteError as error:
                return str(error)
            return ""

        return self.comm.bcast(refused() if self.results else "")

    def end_run(self, refused: str) -> int:
        """The run is through; refused: why results or last checkpoint are not on disk. Returns the
        exit status.
        """
        if not refused:
            self.progress.finish(self.results, picture)
            return DONE
        if not self.saver.exists:
            raise saving.everywhere(refused)
        self.warn(
            f"{refused}\n  the end is not on disk; make room, and go on with --resume {self.folder}"
        )
        return RESUME_ME

    def conclude(self) -> None:
        """What the method does after the last round, recorded apart from the rounds: a run may be
        extended.
        """
        with stop_together(self.comm):
            final = self.rounds.finish()
        if self.results and final:
            self.results.arrays |= {f"{FINAL}/{name}": column for name, column in final.items()}

    def rebalance(self) -> None:
        """Move clients by measured cost; collective."""
        self.progress.report_moves(self.rounds.rebalance())
        if self.results:
            self.results.header["placement"] = describe.placement_of(self.rounds)

    def flags(self) -> dict[str, bool]:
        """What this rank wants: to stop; to save, because of the time (rank 0 decides that); and
        whether it writes.
        """
        waited = (time.monotonic() - self.saved_at) / 60
        minutes = self.job.checkpoint.minutes
        save = bool(minutes) and self.comm.rank == 0 and waited >= minutes
        return {
            "stop": self.rounds.fed.clock.heartbeat.stop_requested,
            "save": save,
            "writing": self.saver.writing,
        }

    def due(self, flags: dict[str, bool]) -> bool:
        every = self.job.checkpoint.every
        return flags["stop"] or flags["save"] or bool(every and self.rounds.t % every == 0)

    def write(self, row: dict[str, Any]) -> None:
        """Record a round, on rank 0."""
        if not self.results:
            return
        self.results.append(row)
        self.record()
        self.progress.round(self.rounds.t, row)
        if self.log:
            self.log.round(self.rounds.t, row)

    def record(self) -> None:
        """Bring results to the disk; what it refuses is written with a later round."""
        self.course.check()
        try:
            self.results.write()
        except WriteError as error:
            if self.job.checkpoint.required:
                raise
            self.warn(
                f"{error}\n  results stay in memory, and are written as soon as that can be done"
            )

    def copy(self, row: dict[str, Any] | None = None) -> None:
        """Let the ranks copy what they hold into one another's memory, where they do. row: that of
        the last round.
        """
        if self.course.mirror:
            rows = self.results.pending_rows() if self.results else {}
            self.course.mirror.take(
                self.rounds, rows | ({str(self.rounds.t - 1): row} if row and self.results else {})
            )

    def secure(self) -> None:
        """After a death that left copies in memory: what was on its way to the disk then is lost,
        so begin anew.
        """
        if self.comm.lost and self.saved_t < self.rounds.t < self.job.rounds:
            self.save()

    def save(self) -> None:
        """Begin a checkpoint, after the one before."""
        self.settle()
        self.saver.start()
        self.saved_at, self.saved_t = time.monotonic(), self.rounds.t

    def settle(self, needed: bool = False) -> str:
        """Wait for the checkpoint that is on its way; why it failed, "" if not. WriteError where it
        is needed.
        """
        self.course.check()
        error = self.saver.finish() if self.saver.pending else ""
        if error and (needed or self.job.checkpoint.required):
            raise saving.everywhere(f"{error}\n  {self.rounds.fed.warnings.last_checkpoint}")
        if error:
            last = self.rounds.fed.warnings.last_checkpoint
            self.warn(
                f"no checkpoint of round {self.saver.about.rounds}: {error}\n"
                f"  the run goes on, and tries again when the next is due; {last}"
            )
        return error

    def warn(self, text: str) -> None:
        """Say it, also where the job is quiet."""
        self.rounds.fed.warnings.say(f"warning: {text}")


def picture(record: Record, folder: Path) -> Path:
    """Draw the run's learning curves into its folder; the path."""
    from hpcfed.report.figures.command import (
        at_end,  # here: matplotlib takes 0.4 s, which no run should wait for at its start
    )

    return at_end(record, folder)
