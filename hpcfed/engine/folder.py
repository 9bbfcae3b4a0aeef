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
from hpcfed.config.load import continuing
from hpcfed.config.write import without_call
from hpcfed.core.errors import CheckpointError, ConfigError, DamagedError, HpcfedError, may_pass
from hpcfed.storage import checkpoint, names, results
from hpcfed.storage.atomic import convert_write_errors
from hpcfed.storage.lock import Lock, is_locked_by, tidy
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
        self.new_folders: list[Path] = []  # folders that this process has made

    def enter(self, job: Job, comm: Comm) -> Path:
        """Make the folder and lock it on rank 0, before anything is written to it; collective.

        Raises ConfigError on all ranks if another run has the folder, WriteError if the disk
        refuses.
        """
        run = on_all_ranks(comm, lambda: self.begin(job) if comm.rank == 0 else None)
        self.world, folder = comm.bcast((self.world, str(run)))
        return Path(folder)

    def begin(self, job: Job) -> Path:
        """Do rank 0's part of `enter`; it keeps the lock if this process has it already."""
        if self.lock:
            return self.lock.run
        folder, self.world = of(job), self.world or secrets.token_hex(16)
        self.new_folders = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
        make(folder)
        lock = Lock(folder, self.world)
        try:
            lock.take(job.force)
        except HpcfedError:
            self.unmake()
            raise
        self.lock = lock
        tidy(lock.path)
        shutil.rmtree(names.watch_folder(folder), ignore_errors=True)
        return folder

    def prepare(self, job: Job, comm: Comm, folder: Path, ours: bool = False) -> None:
        """Make the folder ready for the run on rank 0, and look for it on other nodes; collective.

        ours: whether this run has used the folder before.
        Raises ConfigError on all ranks if the folder cannot be used, or if a node has another
        folder at this path, where parts of checkpoints would be lost.
        """

        def own_part() -> None:
            if comm.rank == 0:
                sweep(folder) if ours else claim(job, folder)
            elif comm.local_rank == 0:
                look(folder, self.world)

        on_all_ranks(comm, own_part)

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
            for path in self.new_folders:
                path.rmdir()


def run_id(folder: Path) -> str:
    """Return the identity of the run in this folder, which all its files store; "" if none does.

    It is read from the results, or from the newest checkpoint if there are no usable results.
    """
    header = results_header(folder) or checkpoint.newest_header(folder)
    return header.get(RUN_ID, "")


def results_header(folder: Path) -> dict[str, Any]:
    """Return the header of the results in this folder; {} if there are no usable results."""
    try:
        return results.recover(folder).header
    except CheckpointError:
        return {}


def of(job: Job) -> Path:
    """Return the folder of a run.

    A resumed run continues in its own folder. Raises ConfigError if `out` names another.
    """
    if not job.resume:
        return job.folder
    folder = names.run_of(job.resume)
    if job.out and job.out.resolve() != folder.resolve():
        raise ConfigError(
            f"out: {job.out}, but a resumed run continues in its own folder, {folder}; remove out"
        )
    return folder


def claim(job: Job, folder: Path) -> None:
    """Make the folder, unless it holds a run that is neither resumed nor overwritten.

    Raises ConfigError for such a folder, WriteError if old results cannot be removed.
    """
    make(folder)
    if not job.resume:
        if not job.overwrite and holds(folder):
            raise ConfigError(
                f"out: {folder} holds a run already; continue it with {continuing(job, folder)}, "
                "replace it with --overwrite, or give another --out"
            )
        with convert_write_errors(names.results_file(folder)):
            names.results_file(folder).unlink(missing_ok=True)
        if job.overwrite:
            remove_old_run(folder)
    sweep(folder)
    make(names.checkpoint_folder(folder))


def remove_old_run(folder: Path) -> None:
    """Remove what a run that is overwritten has written beside its results, as far as possible."""
    for old in (
        names.checkpoint_folder(folder),
        names.models_folder(folder),
        names.adapted_folder(folder),
        names.rank_log_folder(folder),
    ):
        shutil.rmtree(old, ignore_errors=True)
    for file in (names.probe_file(folder), names.picture_file(folder)):
        with suppress(OSError):
            file.unlink()


def holds(folder: Path) -> bool:
    """Return whether the folder has a run that could lose something.

    That is a finished round, a checkpoint, or a result file that cannot be read.
    """
    try:
        return bool(checkpoint.newest(folder)) or results.load(folder).rounds > 0
    except CheckpointError:
        return not names.is_missing(names.results_file(folder))


def look(folder: Path, world: str) -> None:
    """Wait until this node sees the lock that rank 0 has on the folder.

    Some network file systems take a while. Raises ConfigError after PATIENCE seconds.
    """
    end = monotonic() + PATIENCE
    while not is_locked_by(folder, world):
        if monotonic() > end:
            raise ConfigError(
                f"out: {socket.gethostname()} has another folder at {folder} than rank 0's node; "
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
            f"resume: {path} is not a file; give a run folder, or one of its checkpoints"
        )
    try:
        job = results.recover(names.run_of(path)).header["job"]
    except DamagedError as error:
        job = checkpoint.newest_header(path).get("settings")
        if job is None:
            raise error
    return without_call(job)
