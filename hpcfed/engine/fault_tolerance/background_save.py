"""Checkpoints in the background: each rank's thread writes its part while the next round trains.

The threads use no MPI: each leaves a note beside its part. When all notes are there, the thread of
rank 0 writes the index, and only then the checkpoint exists. So it does not need the round that is
going on to end, which may take hours, or fail. All ranks learn of it with the record of a round. At
most one checkpoint is being written at a time.
Memory: in addition to the run's own, a snapshot (`snapshot.take_snapshot`) until the part is
written. If clients are kept on disk (run.resident) nothing is copied: the round waits for the part.
Disk: checkpoint.keep checkpoints, and one more, because the oldest is deleted after the newest
exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Self

from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.core.errors import WriteError
from hpcfed.engine.fault_tolerance import snapshot
from hpcfed.storage import checkpoint, checkpoint_parts, names
from hpcfed.storage.atomic import convert_write_errors
from hpcfed.storage.record import FINAL_STEP

if TYPE_CHECKING:
    from hpcfed.engine.rounds import Rounds
    from hpcfed.storage.results import Results

# checkpoints of a run that continues: the newest may be found to be damaged when it is needed
KEEP = 2
LOOK = 0.05  # seconds between two looks at the notes of other ranks
GRACE = 5.0  # seconds that a run which ends by an error waits for the index of its last checkpoint


def await_parts(
    folder: Path, ranks: int, sent: SimpleQueue[dict[int, checkpoint_parts.Part]]
) -> dict[int, checkpoint_parts.Part]:
    """Return the parts of all ranks: by their notes, or as rank 0 is sent them before."""
    parts: list[checkpoint_parts.Part] = []
    while not checkpoint_parts.note_written(folder, parts, ranks):
        with suppress(Empty):
            return sent.get(timeout=LOOK)
    return dict(enumerate(parts))


class BackgroundSave:
    """Writer of a run's checkpoints; all ranks make the same calls.

    results: on rank 0, the results, which are written up to a checkpoint's round before that
    checkpoint exists.
    exists: whether the run already has a checkpoint.
    final: whether the last save that was begun is of the models after the method's final step.
    """

    def __init__(
        self, rounds: Rounds, run: Path, results: Results | None = None, exists: bool = False
    ):
        self.rounds, self.run, self.results = rounds, run, results
        self.comm, self.clock = rounds.fed.comm, rounds.fed.clock
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.part: Future[checkpoint_parts.Part] | None = None  # of the checkpoint on its way
        self.index: Future[str] | None = None  # on rank 0: why it could not be written, or ""
        self.parts = SimpleQueue[dict[int, checkpoint_parts.Part]]()  # of all ranks, for rank 0
        self.about = checkpoint_parts.About(rounds.t, {})  # the last one begun
        self.folder = run  # of its parts
        self.exists, self.final = exists, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread.

        A checkpoint that is being written is completed if all ranks write their parts soon.
        """
        if self.part and not self.comm.has_lost_rank():
            wait([self.part])
            self.await_index()
        self.parts.put({})
        self.thread.shutdown()

    def await_index(self) -> None:
        """Wait for the index of the checkpoint on its way, for some seconds at most."""
        if self.index:
            wait([self.index], GRACE)
        elif self.part and not self.part.exception():
            end = monotonic() + GRACE
            while names.is_missing(names.index_of(self.folder)) and monotonic() < end:
                sleep(LOOK)

    @property
    def pending(self) -> bool:
        """Whether a checkpoint is being written; the same on all ranks."""
        return self.part is not None

    @property
    def writing(self) -> bool:
        """Whether this rank's part is still being written."""
        return self.part is not None and not self.part.done()

    def start(self, final: bool = False) -> None:
        """Begin a checkpoint of the run in its present state; collective.

        No other checkpoint may be pending.
        final: save the models after the method's final step, beside the checkpoints.
        """
        assert self.part is None
        self.final = final
        with self.clock("checkpoint"):
            header = snapshot.header(self.rounds) | ({FINAL_STEP: True} if final else {})
            self.about = checkpoint_parts.About(self.rounds.t, header)
            self.folder, self.parts = self.place(), SimpleQueue()
            refused = "" if final else self.secure()
            on_disk = bool(self.rounds.fed.store.states.away)
            items = self.with_heartbeat(
                snapshot.items(self.rounds)
                if on_disk
                else snapshot.take_snapshot(self.rounds).items.items()
            )
            self.part = self.thread.submit(
                checkpoint_parts.write_part, self.folder, self.comm.rank, items
            )
            if self.comm.rank == 0:
                self.index = self.thread.submit(self.publish, refused, self.parts, self.comm.size)
            if on_disk:
                wait([self.part])

    def with_heartbeat(self, items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yield the items, with a heartbeat for each: all ranks may wait for a slow disk."""
        for item in items:
            self.rounds.fed.clock.heartbeat.beats += 1
            yield item

    def finish(self) -> str:
        """Wait for all parts and for the index; collective.

        Returns the first rank's error message, or "" on success. After an error the earlier
        checkpoints are unchanged. Raises CheckpointError, on all ranks, for values that cannot be
        saved at all.
        """
        with self.clock("checkpoint"):
            part = on_all_ranks(self.comm, self.collect_part)
            every = self.comm.gather({self.comm.rank: part})
            self.comm.confirm()
            self.parts.put(every)  # on file systems that show new files late, before the notes
            error = self.comm.bcast(self.index.result() if self.index else "")
        self.part = self.index = None
        if not (error or self.final):
            self.exists = True
            self.rounds.fed.warnings.last_checkpoint = (
                f"last checkpoint: {names.index_of(self.folder)}"
            )
        return error

    def place(self) -> Path:
        """Return a new folder for the parts, the same on all ranks; collective."""
        file = names.final_file if self.final else names.checkpoint_file
        index = file(self.run, self.about.rounds)
        return self.run / self.comm.bcast(str(checkpoint.fresh(index).relative_to(self.run)))

    def secure(self) -> str:
        """Write the results up to the checkpoint's round, and a copy beside the parts.

        Results come first, so that they are never behind the checkpoint. Returns an error message
        or "".
        """
        try:
            if self.results:
                self.results.secure(self.about.rounds)
                with convert_write_errors(self.folder):
                    self.folder.mkdir(parents=True, exist_ok=True)
                self.results.copy(names.results_copy(self.folder))
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

    def publish(
        self, refused: str, parts: SimpleQueue[dict[int, checkpoint_parts.Part]], ranks: int
    ) -> str:
        """Write the index and prune old checkpoints, in rank 0's thread.

        refused: why the results are not on disk; "" if they are.
        parts: where those of all ranks may arrive before their notes; none: the run ends.
        Returns an error message or "". After an error the parts are removed, to free the disk.
        """
        every = await_parts(self.folder, ranks, parts)
        if not every:
            return "the run has ended"
        error = next((part["error"] for part in every.values() if "error" in part), "") or refused
        try:
            if not error:
                checkpoint_parts.write_index(self.folder, self.about, every)
        except WriteError as failure:
            error = str(failure)
        if error:
            checkpoint.remove_parts(self.folder)
        else:
            checkpoint.prune(self.run, self.rounds.fed.job.checkpoint.keep or KEEP)
        return error
