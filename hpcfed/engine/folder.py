"""The output folder of a run: made, or refused before anything is computed."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.config.write import without_call
from hpcfed.core.errors import CheckpointError, ConfigError, DamagedError, HpcfedError, may_pass
from hpcfed.storage import checkpoint, names, results
from hpcfed.storage.atomic import convert_write_errors
from hpcfed.storage.lock import Lock, tidy
from hpcfed.storage.record import RUN_ID

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job

PATIENCE = 30.0  # seconds in which a network file system shows a new file to other nodes


class Claim:
    """The run folder as these ranks hold it: one run at a time, whose ranks may follow one another.

    world: names the ranks together, once `enter` has agreed on it.
    """

    def __init__(self) -> None:
        self.world = ""
        self.lock: Lock | None = None  # on rank 0
        self.made: list[Path] = []  # folders that were not there before

    def enter(self, job: Job, comm: Comm) -> Path:
        """Make the folder, and lock it on rank 0, before anything is written there; collective.

        Raises ConfigError on all ranks where another run has it, WriteError where the disk refuses.
        """
        folder = on_all_ranks(comm, lambda: of(job))
        self.world = comm.bcast(self.world or secrets.token_hex(16))
        on_all_ranks(comm, lambda: self.begin(folder, job.force) if comm.rank == 0 else None)
        return folder

    def begin(self, folder: Path, force: bool) -> None:
        """What `enter` does on rank 0; where its own process has the lock, nothing."""
        if self.lock:
            return
        self.made = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
        make(folder)
        lock = Lock(folder, self.world)
        try:
            lock.take(force)
        except HpcfedError:
            self.unmake()
            raise
        self.lock = lock
        tidy(folder)
        shutil.rmtree(names.watch_folder(folder), ignore_errors=True)

    def leave(self) -> None:
        """Let others have the folder.

        Where nothing was written to it, it is as if it had never been.
        """
        if self.lock:
            self.lock.release()
            shutil.rmtree(names.watch_folder(self.lock.run), ignore_errors=True)
            self.unmake()
            self.lock = None

    def unmake(self) -> None:
        """Remove the folders that this process has made, where they are empty."""
        with suppress(OSError):
            for path in self.made:
                path.rmdir()


def prepare(job: Job, comm: Comm, folder: Path, ours: bool = False) -> None:
    """Make the folder ready for the run, which holds it; collective.

    ConfigError on all ranks if it cannot be used.

    ours: it has been this run's already.
    """
    on_all_ranks(
        comm, lambda: (sweep(folder) if ours else claim(job, folder)) if comm.rank == 0 else None
    )
    if max(comm.node_of):
        same_everywhere(folder, comm)


def run_id(job: Job, comm: Comm, folder: Path, world: str, ours: bool) -> str:
    """What names the run in all its files: as its results have it, else its newest checkpoint, else
    as the ranks that begin it are named; collective.
    """

    def known() -> str:
        if not (ours or job.resume):
            return ""
        try:
            return results.recover(folder).header.get(RUN_ID, "")
        except CheckpointError:  # a run without usable results goes on from its checkpoint
            return checkpoint.newest_header(folder).get(RUN_ID, "")

    return comm.bcast(on_all_ranks(comm, lambda: known() if comm.rank == 0 else "") or world)


def of(job: Job) -> Path:
    """A resumed run goes on in its own folder; ConfigError if `out` names another."""
    if not job.resume:
        return job.folder
    own = names.run_of(job.resume)
    if job.out and job.out.resolve() != own.resolve():
        raise ConfigError(
            f"out: {job.out}, but a resumed run goes on in its own folder, {own}; leave out away"
        )
    return own


def claim(job: Job, folder: Path) -> None:
    """Make the folder; refuse one that holds a run, unless that is to be resumed or overwritten."""
    make(folder)
    if not job.resume:
        if not job.overwrite and holds(folder):
            raise ConfigError(
                f"out: {folder} holds a run already; continue it with --resume {folder}, "
                "replace it with --overwrite, or give another --out"
            )
        for old in (names.results_file(folder), names.journal_file(names.results_file(folder))):
            old.unlink(missing_ok=True)
        if job.overwrite:
            shutil.rmtree(names.checkpoint_folder(folder), ignore_errors=True)
    sweep(folder)
    make(names.checkpoint_folder(folder))


def holds(folder: Path) -> bool:
    """Whether a run is there of which something would be lost: a round, a checkpoint, or what
    cannot be read.
    """
    try:
        return bool(checkpoint.newest(folder)) or results.load(folder).rounds > 0
    except CheckpointError:
        return os.path.exists(names.results_file(folder))


def same_everywhere(folder: Path, comm: Comm) -> None:
    """ConfigError on all ranks where a node has another folder at this path: parts of checkpoints
    would be lost there.

    Collective; a file is made by one rank, and looked for by one of each node.
    """
    mark = folder / comm.bcast(names.marker_file(folder).name)
    try:
        on_all_ranks(comm, lambda: touch(mark) if comm.rank == 0 else None)
        on_all_ranks(comm, lambda: look(mark) if comm.local_rank == 0 else None)
    finally:
        if comm.rank == 0:
            mark.unlink(missing_ok=True)


def touch(mark: Path) -> None:
    with convert_write_errors(mark):
        mark.touch()


def look(mark: Path) -> None:
    """ConfigError where this file does not come to be seen: some network file systems take a
    while.
    """
    end = monotonic() + PATIENCE
    while not mark.exists():
        if monotonic() > end:
            raise ConfigError(
                f"out: {socket.gethostname()} has another folder at {mark.parent} than rank 0's "
                f"node; "
                "give an --out that all nodes share"
            )
        sleep(0.1)


def make(folder: Path) -> None:
    """A folder that can be written to; ConfigError where there can be none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refused = ConfigError(
            f"out: cannot make the folder {folder}: {error.strerror}; give another --out"
        )
        refused.again = may_pass(error)
        raise refused from error
    except RecursionError as error:
        raise ConfigError(
            f"out: a folder in {len(folder.parts)} others is too deep to be made; give another "
            f"--out"
        ) from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"out: {folder} is not writable; give another --out")


def sweep(folder: Path) -> None:
    """Remove what killed ranks had on disk: what did not fit in their memory."""
    for left in folder.glob(names.spill_folder(Path(), "*").name):
        shutil.rmtree(left, ignore_errors=True)


def read_job(path: Path) -> dict[str, Any]:
    """The job of a run that is to be resumed: from its results, else from its checkpoints."""
    if path.suffix == ".h5" and not os.path.isfile(path):
        raise CheckpointError(
            f"resume: {path} is no file; give a run folder, or one of its checkpoints"
        )
    try:
        job = results.recover(names.run_of(path)).header["job"]
    except DamagedError as error:
        header = checkpoint.newest_header(path)
        # checkpoints from before they held the whole job have what results depend on
        job = header.get("settings") or header.get("job")
        if job is None:
            raise error
    return without_call(job)
