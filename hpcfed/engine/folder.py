"""The output folder of a run, which is made or refused before anything is computed."""

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
    """The claim of these ranks on the run folder, which belongs to one run at a time.

    world: identity of the ranks together, once `enter` has agreed on it.
    """

    def __init__(self) -> None:
        self.world = ""
        self.lock: Lock | None = None  # on rank 0
        self.made: list[Path] = []  # folders that this process has made

    def enter(self, job: Job, comm: Comm) -> Path:
        """Make the folder and lock it on rank 0, before anything is written to it; collective.

        Raises ConfigError on all ranks if another run has the folder, WriteError if the disk
        refuses.
        """
        folder = on_all_ranks(comm, lambda: of(job))
        self.world = comm.bcast(self.world or secrets.token_hex(16))
        on_all_ranks(comm, lambda: self.begin(folder, job.force) if comm.rank == 0 else None)
        return folder

    def begin(self, folder: Path, force: bool) -> None:
        """Do rank 0's part of `enter`; nothing if this process has the lock already."""
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
        """Release the folder for other runs.

        Folders that this process has made are removed if nothing was written to them.
        """
        if self.lock:
            self.lock.release()
            shutil.rmtree(names.watch_folder(self.lock.run), ignore_errors=True)
            self.unmake()
            self.lock = None

    def unmake(self) -> None:
        """Remove the folders that this process has made, if they are empty."""
        with suppress(OSError):
            for path in self.made:
                path.rmdir()


def prepare(job: Job, comm: Comm, folder: Path, ours: bool = False) -> None:
    """Make the folder ready for the run; collective.

    ours: whether this run has used the folder before.
    Raises ConfigError on all ranks if the folder cannot be used.
    """
    on_all_ranks(
        comm, lambda: (sweep(folder) if ours else claim(job, folder)) if comm.rank == 0 else None
    )
    if max(comm.node_of):
        same_everywhere(folder, comm)


def run_id(job: Job, comm: Comm, folder: Path, world: str, ours: bool) -> str:
    """Return the identity of the run, which all its files store; collective.

    It is read from the results if there are any, else from the newest checkpoint; a new run takes
    `world`, the identity of the ranks that begin it.
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
    """Return the folder of a run.

    A resumed run continues in its own folder. Raises ConfigError if `out` names another.
    """
    if not job.resume:
        return job.folder
    own = names.run_of(job.resume)
    if job.out and job.out.resolve() != own.resolve():
        raise ConfigError(
            f"out: {job.out}, but a resumed run goes on in its own folder, {own}; leave out away"
        )
    return own


def claim(job: Job, folder: Path) -> None:
    """Make the folder, unless it holds a run that is neither resumed nor overwritten.

    Raises ConfigError for such a folder, WriteError if old results cannot be removed.
    """
    make(folder)
    if not job.resume:
        if not job.overwrite and holds(folder):
            raise ConfigError(
                f"out: {folder} holds a run already; continue it with --resume {folder}, "
                "replace it with --overwrite, or give another --out"
            )
        for old in (names.results_file(folder), names.journal_file(names.results_file(folder))):
            with convert_write_errors(old):
                old.unlink(missing_ok=True)
        if job.overwrite:
            shutil.rmtree(names.checkpoint_folder(folder), ignore_errors=True)
    sweep(folder)
    make(names.checkpoint_folder(folder))


def holds(folder: Path) -> bool:
    """Return whether the folder has a run that could lose something.

    That is a finished round, a checkpoint, or a result file that cannot be read.
    """
    try:
        return bool(checkpoint.newest(folder)) or results.load(folder).rounds > 0
    except CheckpointError:
        return os.path.exists(names.results_file(folder))


def same_everywhere(folder: Path, comm: Comm) -> None:
    """Raise ConfigError on all ranks if a node has another folder at this path; collective.

    Parts of checkpoints would be lost there. One rank makes a file, and one rank of each node looks
    for it.
    """
    mark = folder / comm.bcast(names.marker_file(folder).name)
    try:
        on_all_ranks(comm, lambda: touch(mark) if comm.rank == 0 else None)
        on_all_ranks(comm, lambda: look(mark) if comm.local_rank == 0 else None)
    finally:
        if comm.rank == 0:
            with suppress(OSError):
                mark.unlink(missing_ok=True)


def touch(mark: Path) -> None:
    with convert_write_errors(mark):
        mark.touch()


def look(mark: Path) -> None:
    """Wait until this file can be seen on this node.

    Some network file systems take a while. Raises ConfigError after PATIENCE seconds.
    """
    end = monotonic() + PATIENCE
    while not os.path.exists(mark):
        if monotonic() > end:
            raise ConfigError(
                f"out: {socket.gethostname()} has another folder at {mark.parent} than rank 0's "
                f"node; "
                "give an --out that all nodes share"
            )
        sleep(0.1)


def make(folder: Path) -> None:
    """Make a writable folder. Raises ConfigError if that is not possible."""
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
    """Remove the folders to which killed ranks spilled what did not fit in their memory."""
    for left in folder.glob(names.spill_folder(Path(), "*").name):
        shutil.rmtree(left, ignore_errors=True)


def read_job(path: Path) -> dict[str, Any]:
    """Return the job of a run that is to be resumed, from its results or else its checkpoints.

    Raises CheckpointError if neither can be read.
    """
    if path.suffix == ".h5" and not os.path.isfile(path):
        raise CheckpointError(
            f"resume: {path} is no file; give a run folder, or one of its checkpoints"
        )
    try:
        job = results.recover(names.run_of(path)).header["job"]
    except DamagedError as error:
        job = checkpoint.newest_header(path).get("settings")
        if job is None:
            raise error
    return without_call(job)
