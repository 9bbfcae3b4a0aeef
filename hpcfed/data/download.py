"""Downloads to the data folder, one at a time, whichever process, node or job starts them.

The data folder is locked while a process downloads; the others wait, and then find the files. Files
are written to a temporary folder in it and moved to their places when all are complete, so a
process that does not wait never sees half a file.
The lock needs no locks of the file system, and a holder that has died is replaced
(`hpcfed.storage.lock`). If a holder only seems dead, because its node was cut off for a minute, two
processes download, and both move complete files.
"""

import os
import shutil
import sys
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from tempfile import mkdtemp
from time import time

from hpcfed.core.errors import WriteError, format_error
from hpcfed.core.paths import glob_folder, regular
from hpcfed.storage import lock
from hpcfed.storage.lock import Holder, Lock

TIMEOUT = 60.0  # seconds without a byte before a download is given up
LOCK = ".hpcfed-download.lock"
TEMPORARY = ".hpcfed-download-"  # beginning of the names of temporary folders
ABANDONED = 86_400.0  # seconds after which a temporary folder belongs to a process that was killed
PATIENCE = 5.0  # seconds that a process waits before it says so


def once(
    name: str, root: Path, is_present: Callable[[], bool], fetch: Callable[[Path], object]
) -> None:
    """Download a data set to root, unless it is present; one process does so at a time.

    is_present: returns whether nothing needs to be downloaded; called while root is locked.
    fetch: writes all files of the data set to the folder that it receives, as they lie in root.
    Raises OSError if root cannot be written, and what fetch raises.
    """
    root.mkdir(parents=True, exist_ok=True)
    data_lock = Lock(root, "", end=None, path=root / LOCK)
    try:
        data_lock.take(force=True, wait=Announcement(name, root))
    except WriteError as error:
        cause = error.__cause__
        assert isinstance(cause, OSError)
        raise OSError(cause.errno, cause.strerror, str(root)) from error
    try:
        remove_abandoned(root)
        if not is_present():
            fetch_and_move(root, fetch)
    finally:
        data_lock.release()


def are_present(root: Path, files: Iterable[str]) -> bool:
    """Return whether root has all of these files and folders."""
    return all(os.path.exists(root / file) for file in files)


def fetch_and_move(root: Path, fetch: Callable[[Path], object]) -> None:
    """Call fetch with a temporary folder in root, and move what it wrote to root."""
    folder = Path(mkdtemp(prefix=TEMPORARY, dir=root))
    try:
        fetch(folder)
        for entry in sorted(folder.iterdir()):
            move(entry, root / entry.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def move(source: Path, target: Path) -> None:
    """Move a file or a folder to its place at once.

    Into a folder that exists its entries are moved, one after the other.
    """
    try:
        os.replace(source, target)
    except OSError:
        if not (source.is_dir() and target.is_dir()):
            raise
        for entry in sorted(source.iterdir()):
            move(entry, target / entry.name)


def retrieve(url: str, path: Path) -> None:
    """Download one file; raises OSError, also if the connection ends before the file does."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, path.open("wb") as file:
            shutil.copyfileobj(answer, file)
            size, expected = file.tell(), answer.headers.get("Content-Length")
    except HTTPException as error:
        raise OSError(f"{url}: {error or type(error).__name__}") from error
    if expected is not None and str(size) != expected:
        raise OSError(f"{url}: ended after {size} of {expected} bytes; try again")


def copy_existing(root: Path, folder: Path, patterns: Iterable[str]) -> None:
    """Copy the files of root that match to a temporary folder, for a library that downloads there.

    It takes those that are intact, and may overwrite the others.
    """
    for pattern in patterns:
        for path in glob_folder(root, pattern):
            target = folder / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(regular(path), target)


class Announcement:
    """Says once on stderr that this process waits, for whom, and what to do if that is wrong."""

    def __init__(self, name: str, root: Path):
        self.name, self.root, self.silent = name, root, True

    def __call__(self, holder: Holder, waited: float) -> None:
        if self.silent and waited >= PATIENCE:
            self.silent = False
            text = (
                f"{self.name}: waiting for {holder}, which downloads to {self.root} (data.root); "
                f"if it hangs, end it"
            )
            print(f"hpcfed: {format_error(text)}", file=sys.stderr, flush=True)


def remove_abandoned(root: Path) -> None:
    """Remove what processes left that were killed during a download."""
    lock.tidy(root / LOCK)
    for folder in glob_folder(root, f"{TEMPORARY}*"):
        with suppress(OSError):
            if time() - folder.stat().st_mtime > ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)
