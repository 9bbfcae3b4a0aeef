"""The output folder of a run: made, or refused before anything is computed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.comm.agree import agreed
from hpcfed.errors import ConfigError
from hpcfed.storage import checkpoint, names

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job


def prepare(job: Job, comm: Comm) -> Path:
    """The folder that the run writes to; collective. ConfigError on all ranks if it cannot be used."""
    folder = agreed(comm, lambda: of(job))
    agreed(comm, lambda: claim(job, folder) if comm.rank == 0 else None)
    return folder


def of(job: Job) -> Path:
    """A resumed run goes on in its own folder; ConfigError if `out` names another."""
    if not job.resume:
        return job.folder
    own = names.run_of(job.resume)
    if job.out and job.out.resolve() != own.resolve():
        raise ConfigError(f"out: {job.out}, but a resumed run goes on in its own folder, {own}; leave out away")
    return own


def claim(job: Job, folder: Path) -> None:
    """Make the folder; refuse one that holds a run, unless that is to be resumed or overwritten."""
    make(folder)
    if not job.resume and (os.path.exists(names.results_file(folder)) or checkpoint.newest(folder)):
        if not job.overwrite:
            raise ConfigError(
                f"out: {folder} holds a run already; continue it with --resume {folder}, "
                "replace it with --overwrite, or give another --out"
            )
        for old in (names.results_file(folder), names.journal_file(names.results_file(folder))):
            old.unlink(missing_ok=True)
        shutil.rmtree(names.checkpoint_folder(folder), ignore_errors=True)
    for left in folder.glob(names.spill_folder(Path(), "*").name):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    make(names.checkpoint_folder(folder))


def make(folder: Path) -> None:
    """A folder that can be written to; ConfigError where there can be none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out: cannot make the folder {folder}: {error.strerror}; give another --out") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"out: {folder} is not writable; give another --out")
