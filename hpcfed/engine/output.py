"""Output of a run's rounds: results on disk, progress on the terminal, other logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcfed.core.errors import WriteError
from hpcfed.storage.results import FINAL, MANY, Results

if TYPE_CHECKING:
    from hpcfed.core.user_code import OwnError
    from hpcfed.engine.fault_tolerance.recover import Course
    from hpcfed.engine.on_round import Callback
    from hpcfed.engine.rounds import Rounds
    from hpcfed.report.progress import Progress
    from hpcfed.report.sinks.logs import Logs

COPIED = 100  # rounds that may wait in memory if ranks copy them to one another in every round


class Output:
    """The records of a run.

    results, log, callback: on rank 0; None on other ranks.
    """

    def __init__(
        self,
        rounds: Rounds,
        results: Results | None,
        progress: Progress,
        log: Logs | None,
        course: Course,
        callback: Callback | None = None,
    ) -> None:
        self.rounds, self.results, self.progress, self.log = rounds, results, progress, log
        self.course, self.callback = course, callback

    @property
    def failure(self) -> OwnError | None:
        """The error of the user's function, on rank 0."""
        return self.callback.failure if self.callback else None

    def begin(self) -> None:
        """Write the result file before the first round, unless that has been done."""
        if self.results and not self.results.is_on_disk:
            self.write()

    def add(self, row: dict[str, Any]) -> None:
        """Record the round that is done."""
        if not self.results:
            return
        self.results.append(row)
        self.write()
        self.progress.round(self.rounds.t, row)
        if self.log:
            self.log.round(self.rounds.t, row)
        if self.callback:
            self.rounds.fed.clock.heartbeat.enter("on_round")
            self.callback.round(self.rounds.t, row)
            if self.failure:
                self.rounds.fed.clock.heartbeat.ask(0.0)

    def add_final(self, final: dict[str, Any]) -> None:
        """Record the results of the steps after the last round, apart from the rounds."""
        if self.results and final:
            self.results.arrays |= {f"{FINAL}/{name}": column for name, column in final.items()}

    def add_closing(self) -> None:
        """Record metrics by group, and what charts show, which are computed once at the end."""
        if self.results:
            self.results.arrays |= self.rounds.evaluation.metrics.closing()

    def note_early_end(self, why: str) -> None:
        """Record and print why the run has ended before the job's last round; "": it has not."""
        if self.results and why and self.rounds.t < self.rounds.fed.job.rounds:
            self.results.header["early"] = why
            self.progress.say(f"ended after round {self.rounds.t}: {why}")

    def write(self) -> None:
        """Write the results to disk.

        If the disk refuses, they are written with a later round. Raises WriteError in that case if
        the job has checkpoint.required.
        """
        assert self.results is not None
        self.course.check()
        try:
            self.results.write(COPIED if self.course.buddy_copy else MANY)
        except WriteError as error:
            if self.rounds.fed.job.checkpoint.required:
                raise
            self.rounds.fed.warnings.say(
                f"{error}\n  results stay in memory, and are written as soon as that can be done"
            )

    def finish(self, ended: str) -> str:
        """Write the final result file; collective.

        ended: how the run ended, for the header. Returns why the disk refused the file, "" if it
        did not.
        """
        return self.rounds.fed.comm.bcast(self._finish(ended) if self.results else "")

    def _finish(self, ended: str) -> str:
        assert self.results is not None
        self.results.header["ended"] = ended
        try:
            self.results.finish()
        except WriteError as error:
            return str(error)
        return ""
