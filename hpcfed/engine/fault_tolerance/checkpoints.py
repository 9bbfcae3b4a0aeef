"""When a run is saved, and how errors of the disk are handled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hpcfed.core.errors import WriteError, everywhere
from hpcfed.engine.fault_tolerance.background_save import BackgroundSave
from hpcfed.storage import checkpoint

if TYPE_CHECKING:
    from hpcfed.engine.fault_tolerance.recover import Course
    from hpcfed.engine.rounds import Rounds
    from hpcfed.storage.results import Results


class Checkpoints:
    """The checkpoints of a run, on disk and as copies in the memory of other ranks.

    saved_t: rounds done when the last checkpoint was started.
    """

    def __init__(
        self, rounds: Rounds, folder: Path, results: Results | None, course: Course
    ) -> None:
        self.rounds, self.results, self.course = rounds, results, course
        self.comm, self.wanted = rounds.fed.comm, rounds.fed.job.checkpoint
        self.saver = BackgroundSave(rounds, folder, results, exists=course.saved > 0)
        self.saved_at, self.saved_t = time.monotonic(), course.saved

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.saver.close()

    def flags(self) -> dict[str, bool]:
        """Return the flags that this rank sends to the others.

        save: whether checkpoint.minutes have passed (rank 0 alone decides).
        writing: whether this rank still writes its part.
        """
        waited, minutes = (time.monotonic() - self.saved_at) / 60, self.wanted.minutes
        save = bool(minutes) and self.comm.rank == 0 and waited >= minutes
        return {"save": save, "writing": self.saver.writing}

    def due(self, flags: dict[str, bool]) -> bool:
        """Return whether to save now. flags: each is set if any rank has set it."""
        every = self.wanted.every
        return flags["stop"] or flags["save"] or bool(every and self.rounds.t % every == 0)

    def save(self) -> None:
        """Begin a checkpoint, after the previous one is finished; collective."""
        self.settle()
        self.saver.start()
        self.saved_at, self.saved_t = time.monotonic(), self.rounds.t

    def save_final(self) -> None:
        """Begin to save the models after the method's final step; collective."""
        self.saver.start(final=True)

    def save_after_death(self) -> None:
        """Begin a new checkpoint after a death, because the one that was being written is lost.

        It is needed only if copies in memory survived; otherwise the run is at its last checkpoint.
        """
        if self.comm.lost and self.saved_t < self.rounds.t and not self.rounds.over:
            self.save()

    def settle(self, needed: bool = False) -> str:
        """Wait for the pending checkpoint, or final models, and return its error message or "".

        Raises WriteError on failure if needed, or if the job has checkpoint.required.
        """
        self.course.check()
        error = self.saver.finish() if self.saver.pending else ""
        warnings = self.rounds.fed.warnings
        if error and (needed or self.wanted.required):
            failure = WriteError(f"{error}\n  {warnings.last_checkpoint}")
            raise everywhere(failure)
        if error and self.saver.final:
            warnings.say(f"the models after the method's final step are not saved: {error}")
        elif error:
            warnings.say(
                f"no checkpoint of round {self.saver.about.rounds}: {error}\n"
                "  the run continues and tries again when the next one is due; "
                f"{warnings.last_checkpoint}"
            )
        return error

    def keep_last(self) -> None:
        """Remove all checkpoints of a finished run but the last, unless the job says how many.

        The last one is intact: it was compared with what was written, or the run was
        restored from it.
        """
        if self.comm.rank == 0 and self.wanted.keep is None:
            checkpoint.prune(self.saver.run, keep=1)

    def copy(self, row: dict[str, Any] | None = None) -> None:
        """Let the ranks copy their state into one another's memory, if the job uses buddy copies.

        row: the record of the last round.
        """
        if self.course.buddy_copy:
            rows = self.results.pending_rows() if self.results else {}
            last = {str(self.rounds.t - 1): row} if row and self.results else {}
            self.course.buddy_copy.take(self.rounds, rows | last)
