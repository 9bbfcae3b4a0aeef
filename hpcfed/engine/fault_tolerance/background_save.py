"""Checkpoints in the background: each rank's thread writes its part while the next round trains.

The threads do not communicate and use no MPI. When all ranks know that all parts are written (they
exchange that with the record of a round), rank 0 writes the index, and only then the checkpoint
exists. At most one checkpoint is being written at a time.
Memory: in addition to the run's own, a snapshot (`snapshot.take_snapshot`) until the part is
written. If clients are kept on disk (run.resident) nothing is copied: the round waits for the part.
Disk: checkpoint.keep checkpoints, and one more, because the oldest is deleted after the newest
exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.core.errors import WriteError
from hpcfed.engine.fault_tolerance import snapshot
from hpcfed.storage import checkpoint, checkpoint_parts, names

if TYPE_CHECKING:
    from hpcfed.engine.rounds import Rounds
    from hpcfed.storage.results import Results

# checkpoints of a run that continues: the newest may be found to be damaged when it is needed
KEEP = 2


class BackgroundSave:
    """Writer of a run's checkpoints; all ranks make the same calls.

    results: on rank 0, the results, which are written up to a checkpoint's round before that
    checkpoint exists.
    exists: whether the run already has a checkpoint.
    """

    def __init__(
        self, rounds: Rounds, run: Path, results: Results | None = None, exists: bool = False
    ):
        self.rounds, self.run, self.results = rounds, run, results
        self.comm, self.clock = rounds.fed.comm, rounds.fed.clock
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.part: Future[checkpoint_parts.Part] | None = None  # of the checkpoint on its way
        self.about = checkpoint_parts.About(rounds.t, {})  # the last one begun
        self.folder = run  # of its parts
        self.exists = exists

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread; a checkpoint that is still being written is dropped."""
        self.thread.shutdown()

    @property
    def pending(self) -> bool:
        """Whether a checkpoint is being written; the same on all ranks."""
        return self.part is not None

    @property
    def writing(self) -> bool:
        """Whether this rank's part is still being written."""
        return self.part is not None and not self.part.done()

    def start(self) -> None:
        """Begin a checkpoint of the run in its present state; collective.

        No other checkpoint may be pending.
        """
        assert self.part is None
        with self.clock("checkpoint"):
            self.about = checkpoint_parts.About(self.rounds.t, snapshot.header(self.rounds))
            self.folder = self.place()
            self.secure()
            on_disk = bool(self.rounds.fed.store.states.away)
            items = self.with_heartbeat(
                snapshot.items(self.rounds)
                if on_disk
                else snapshot.take_snapshot(self.rounds).items.items()
            )
            self.part = self.thread.submit(
                checkpoint_parts.write_part, self.folder, self.comm.rank, items
            )
            if on_disk:
                wait([self.part])

    def with_heartbeat(self, items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yield the items, with a heartbeat for each: all ranks may wait for a slow disk."""
        for item in items:
            self.rounds.fed.clock.heartbeat.beats += 1
            yield item

    def finish(self) -> str:
        """Wait for all parts, then write the index; collective.

        Returns the first rank's error message, or "" on success. After an error the earlier
        checkpoints are unchanged. Raises CheckpointError, on all ranks, for values that cannot be
        saved at all.
        """
        with self.clock("checkpoint"):
            every = self.comm.gather({self.comm.rank: on_all_ranks(self.comm, self.collect_part)})
            self.comm.confirm()
            error = self.comm.bcast(self.publish(every) if self.comm.rank == 0 else "")
        self.part = None
        if not error:
            self.exists = True
            self.rounds.fed.warnings.last_checkpoint = (
                f"last checkpoint: {names.index_of(self.folder)}"
            )
        return error

    def place(self) -> Path:
        """Return a new folder for the parts, the same on all ranks; collective."""
        index = names.checkpoint_file(self.run, self.about.rounds)
        return self.run / self.comm.bcast(str(checkpoint.fresh(index).relative_to(self.run)))

    def secure(self) -> str:
        """Write the results up to the checkpoint's round, and return an error message or "".

        Results come first, so that they are never behind the checkpoint.
        """
        try:
            if self.results:
                self.results.secure(self.about.rounds)
        except WriteError as error:
            return str(error)
        return ""

    def collect_part(self) -> checkpoint_parts.Part:
        """Return this rank's part, or {"error": message} if it could not be written."""
        assert self.part is not None
        try:
            return self.part.result()
        except WriteError as error:
            return {"error": str(error)}

    def publish(self, every: dict[int, checkpoint_parts.Part]) -> str:
        """Write the index and prune old checkpoints, on rank 0; return an error message or "".

        After an error the parts are removed, to free the disk.
        """
        error = (
            next((part["error"] for part in every.values() if "error" in part), "") or self.secure()
        )
        try:
            if not error:
                if self.results:
                    self.results.copy(names.results_copy(self.folder))
                checkpoint_parts.write_index(self.folder, self.about, every)
        except WriteError as refused:
            error = str(refused)
        if error:
            checkpoint.remove_parts(self.folder)
        else:
            checkpoint.prune(self.run, self.rounds.fed.job.checkpoint.keep or KEEP)
        return error
