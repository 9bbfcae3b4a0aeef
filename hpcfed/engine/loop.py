"""The loop around the rounds, and what ends it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.core.status import DONE, RESUME_ME
from hpcfed.engine import describe
from hpcfed.engine.fault_tolerance import save_restore
from hpcfed.engine.fault_tolerance.checkpoints import Checkpoints
from hpcfed.engine.output import Output
from hpcfed.engine.rounds import Rounds, stop_together
from hpcfed.machine.heartbeat import Stopped
from hpcfed.storage.record import FINISHED, STOPPED, Record

if TYPE_CHECKING:
    from hpcfed.engine.fault_tolerance.recover import Course
    from hpcfed.report.progress import Progress
    from hpcfed.report.sinks.logs import Logs
    from hpcfed.storage.results import Results


class Loop:
    """Round after round until the job's last, or until a signal asks to stop.

    It has `rounds` (the step), `output` (results, progress, logs) and `checkpoints`.
    """

    def __init__(
        self,
        rounds: Rounds,
        folder: Path,
        results: Results | None,
        progress: Progress,
        course: Course,
        log: Logs | None = None,
    ):
        self.rounds, self.folder, self.course = rounds, folder, course
        self.job, self.comm, self.first = rounds.fed.job, rounds.fed.comm, rounds.t
        self.output = Output(rounds, results, progress, log, course)
        self.checkpoints = Checkpoints(rounds, folder, results, course)

    def run(self) -> int:
        """All rounds that are left; collective.

        Returns the exit status, when all ranks are through.
        """
        self.course.signals.heed()
        self.course.under_way()
        self.output.begin()
        with self.checkpoints:
            self.checkpoints.copy()
            try:
                self.checkpoints.save_after_death()
                status = self.go_on()
            except Stopped:
                self.comm.confirm()
                if self.rounds.t < self.job.rounds:
                    self.checkpoints.save()
                status = self.stop_for_signal()
            # rank 0 writes to the end: were it to die there, the others are still here to go on
            self.comm.confirm()
        return status

    def go_on(self) -> int:
        """The rounds, and what follows the last.

        Raises Stopped on all ranks where a signal ends that.
        """
        rounds, checkpoints = self.rounds, self.checkpoints
        while rounds.t < self.job.rounds:
            row, flags = rounds.step(self.flags)
            self.comm.confirm()
            checkpoints.copy(row)  # first: from here on the round is finished, whoever dies
            self.write(row)
            self.course.reached = rounds.t
            if checkpoints.saver.pending and not flags["writing"]:
                checkpoints.settle()
            if checkpoints.due(flags):
                checkpoints.save()
            if flags["stop"] and rounds.t < self.job.rounds:
                return self.stop_for_signal()
            if self.job.run.rebalance and rounds.t - self.first == self.job.run.rebalance:
                self.rebalance()
        if checkpoints.saved_t < rounds.t:
            checkpoints.save()
        unsaved = checkpoints.settle()
        self.conclude()
        refused = self.output.finish(STOPPED if unsaved else FINISHED)
        return self.end_run(refused or unsaved)

    def flags(self) -> dict[str, bool]:
        """What this rank wants of the others: to stop, and what concerns checkpoints."""
        stop = self.rounds.fed.clock.heartbeat.stop_requested
        return {"stop": stop} | self.checkpoints.flags()

    def write(self, row: dict[str, Any]) -> None:
        """Record the round that is done."""
        self.output.add(row)

    def rebalance(self) -> None:
        """Move clients by measured cost; collective."""
        self.output.progress.report_moves(self.rounds.balance.rebalance())
        if self.output.results:
            self.output.results.header["placement"] = describe.placement_of(self.rounds)

    def stop_for_signal(self) -> int:
        """The run ends for a signal, with all saved that is done. Returns the exit status."""
        self.checkpoints.settle(needed=not self.checkpoints.saver.exists)
        self.output.progress.say(
            f"stopped by a signal after round {self.rounds.t}; continue with --resume {self.folder}"
        )
        # where that is refused: what the checkpoint needs of them is on disk
        self.output.finish(STOPPED)
        return RESUME_ME

    def conclude(self) -> None:
        """What the method does after the last round, recorded apart from the rounds: a run may be
        extended.
        """
        with stop_together(self.comm):
            final = self.rounds.finish()
        self.output.add_final(final)

    def end_run(self, refused: str) -> int:
        """The run is through; refused: why results or last checkpoint are not on disk.

        Returns the exit status.
        """
        if not refused:
            self.output.progress.finish(self.output.results, picture)
            return DONE
        if not self.checkpoints.saver.exists:
            raise save_restore.everywhere(refused)
        self.rounds.fed.warnings.say(
            f"warning: {refused}\n  the end is not on disk; make room, and go on with --resume "
            f"{self.folder}"
        )
        return RESUME_ME


def picture(record: Record, folder: Path) -> Path:
    """Draw the run's learning curves into its folder; the path."""
    from hpcfed.report.figures.command import (
        at_end,  # here: matplotlib takes 0.4 s, which no run should wait for at its start
    )

    return at_end(record, folder)
