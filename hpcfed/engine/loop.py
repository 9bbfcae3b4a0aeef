"""The loop over rounds, and the end of a run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.config.load import continuing
from hpcfed.core.errors import HpcfedError, RankLost, WriteError, everywhere
from hpcfed.core.exit_status import DONE, RESUME_ME
from hpcfed.core.user_code import OwnError
from hpcfed.engine import describe
from hpcfed.engine.fault_tolerance.checkpoints import Checkpoints
from hpcfed.engine.output import Output
from hpcfed.engine.rounds import Rounds, stop_together
from hpcfed.machine.heartbeat import Stopped
from hpcfed.storage.record import FINISHED, STOPPED, Record

if TYPE_CHECKING:
    from hpcfed.engine.fault_tolerance.recover import Course
    from hpcfed.engine.on_round import Callback
    from hpcfed.engine.rank_log import RankLog
    from hpcfed.report.progress import Progress
    from hpcfed.report.sinks.logs import Logs
    from hpcfed.storage.results import Results


class Loop:
    """The loop over rounds, until the job's last round or until a signal asks to stop.

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
        callback: Callback | None = None,
        rank_log: RankLog | None = None,
    ):
        self.rounds, self.folder, self.course = rounds, folder, course
        self.rank_log = rank_log
        self.job, self.comm, self.first_round = rounds.fed.job, rounds.fed.comm, rounds.t
        self.recorded = rounds.t  # rounds done, with a record
        self.rebalances = self.job.run.rebalance > 0  # until it has been done
        self.output = Output(rounds, results, progress, log, course, callback)
        self.checkpoints = Checkpoints(rounds, folder, results, course)

    def run(self) -> int:
        """Run all remaining rounds, and return the exit status; collective."""
        self.course.monitor.begin_rounds()
        self.output.begin()
        with self.checkpoints:
            self.checkpoints.copy()
            try:
                self.checkpoints.save_after_death()
                status = self.go_on()
            except Stopped:
                self.comm.confirm()
                if not self.rounds.over:
                    self.checkpoints.save()
                status = self.stop_for_signal()
            except Exception as error:
                if is_users(error):
                    self.save_rounds(error)
                raise
            # rank 0 still writes; if it dies now, the other ranks are here to continue
            self.comm.confirm()
        if self.output.failure:
            raise self.output.failure
        return status

    def go_on(self) -> int:
        """Run the remaining rounds and the steps after the last one, and return the exit status.

        Raises Stopped on all ranks if a signal ends the run.
        """
        rounds, checkpoints = self.rounds, self.checkpoints
        while not rounds.over:
            row, flags = rounds.step(self.flags)
            self.comm.confirm()
            checkpoints.copy(row)  # first: the round is finished from here on, whichever rank dies
            self.write(row)
            self.course.reached = self.recorded = rounds.t
            if checkpoints.saver.pending and not flags["writing"]:
                checkpoints.settle()
            if checkpoints.due(flags):
                checkpoints.save()
            if flags["stop"] and not rounds.over:
                return self.stop_for_signal()
            if self.rebalances and rounds.t - self.first_round >= self.job.run.rebalance:
                self.rebalance()
        if checkpoints.saved_t < rounds.t:
            checkpoints.save()
        unsaved = checkpoints.settle()
        unsaved = self.conclude() or unsaved
        self.output.note_early_end(rounds.early_end)
        refused = self.output.finish(STOPPED if unsaved else FINISHED)
        return self.end_run(refused or unsaved)

    def flags(self) -> dict[str, bool]:
        """Return what this rank asks of all ranks: to stop, and what concerns checkpoints."""
        stop = self.rounds.fed.clock.heartbeat.stop_requested
        return {"stop": stop} | self.checkpoints.flags()

    def write(self, row: dict[str, Any]) -> None:
        """Record the round that is done."""
        self.output.add(row)
        if self.rank_log:
            self.rank_log.round(self.rounds.t)

    def rebalance(self) -> None:
        """Move clients between ranks by measured cost, once they have been measured; collective."""
        if not self.rounds.balance.knows_all:
            return
        self.rebalances = False
        self.output.progress.report_moves(self.rounds.balance.rebalance())
        if self.output.results:
            self.output.results.header["placement"] = describe.placement_of(self.rounds)

    def stop_for_signal(self) -> int:
        """End the run for a signal, and return the exit status.

        It waits until the last checkpoint is complete: all ranks' parts, and the index.
        """
        self.checkpoints.settle(needed=not self.checkpoints.saver.exists)
        if not self.output.failure:
            self.output.progress.say(
                f"stopped by a signal after round {self.rounds.t}; continue with "
                f"{continuing(self.job, self.folder)}"
            )
        # if the disk refuses: what the checkpoint needs of the results is there already
        self.output.finish(STOPPED)
        return RESUME_ME

    def save_rounds(self, error: Exception) -> None:
        """Save the rounds done before an error, and note in it from where the run can be resumed.

        Several ranks save nothing: the others may wait for this one.
        """
        rounds, saver = self.rounds, self.checkpoints.saver
        if self.comm.size == 1:
            with suppress(Exception):  # the first error is to be reported
                if rounds.t == self.recorded > self.checkpoints.saved_t:
                    self.checkpoints.save()
                self.checkpoints.settle()
        advice = "the run can only begin anew"
        if saver.exists:
            advice = f"continue with {continuing(self.job, self.folder)}"
        error.add_note(
            f"  rounds done: {self.recorded}, {rounds.fed.warnings.last_checkpoint}; {advice}"
        )

    def conclude(self) -> str:
        """Run the method's steps after the last round, and record their results and models.

        They are recorded apart from the rounds, because a run may be extended. Returns why the
        models are not on disk; "" if they are, or if there are none.
        """
        with stop_together(self.comm):
            final = self.rounds.finish(self.checkpoints.save_final)
        self.output.add_final(final)
        self.output.add_closing()
        return self.checkpoints.settle()

    def end_run(self, refused: str) -> int:
        """End a run whose rounds are done, and return the exit status.

        refused: why results, the last checkpoint or the models after the method's final step are
        not on disk; "" if they are.
        """
        if not refused:
            self.checkpoints.keep_last()
            draw = picture if self.job.log.picture else None
            self.output.progress.finish(self.output.results, draw)
            return DONE
        if not self.checkpoints.saver.exists:
            raise everywhere(WriteError(refused))
        self.rounds.fed.warnings.say(
            f"{refused}\n  the end is not on disk; make room, and continue with "
            f"{continuing(self.job, self.folder)}"
        )
        return RESUME_ME


def is_users(error: Exception) -> bool:
    """Return whether the user's own code may have caused an error."""
    return isinstance(error, OwnError) or not isinstance(error, HpcfedError | RankLost)


def picture(record: Record, folder: Path) -> Path:
    """Draw the run's learning curves into its folder, and return the path."""
    from hpcfed.report.figures.command import (
        at_end,  # imported here: matplotlib takes 0.4 s, which would delay the start of each run
    )

    return at_end(record, folder)
