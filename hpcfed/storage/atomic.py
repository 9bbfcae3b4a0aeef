"""Files that are complete or absent.

Those of HDF5 also say so when a single byte has changed (see `seal`).

A file is written under a temporary name (HDF5: sealed, and flushed to the disk) and then renamed:
whoever opens it sees the old file or the new one, whenever the writer is killed.

HDF5 writes through a Python file here: its own driver ends the process with a segmentation fault
when the disk is full, and locks files, which some parallel file systems refuse.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h5py

from hpcfed.core.errors import CheckpointError, DamagedError, WriteError, may_pass
from hpcfed.core.paths import regular
from hpcfed.core.safe_read import convert_read_errors
from hpcfed.storage import names, uncached
from hpcfed.storage.checksum import BLOCK, seal, verify_seal
from hpcfed.storage.untrusted import attribute

VERSIONS = {  # of each format: the version that is written, and the older ones that are read too
    names.RESULTS: (2, 1),  # 2: sealed by chunk
    names.CHECKPOINT: (4, 3),  # 4: an index of one part a rank; 3: all in one file
}
TEMPORARY = ".tmp"


def versions(form: str) -> tuple[int, ...]:
    """The versions of a format that can be read; that which is written first."""
    return VERSIONS.get(form, (1,))


@contextmanager
def replace_file(
    path: Path, form: str, check: Callable[[Path], object] = lambda new: None
) -> Iterator[h5py.File]:
    """A new HDF5 file of the given format that takes the place of `path` when the block ends
    without error.

    check: is given the new file before it does; where it raises, `path` stays as it was.

    Makes the folder where it is missing, and removes what killed writers of the same file left in
    it. Raises WriteError if the file cannot be written (no space, no permission, no disk); `path`
    is then as before.
    """
    with convert_write_errors(path), instead(path) as new:
        _prepare(path)
        with uncached.new(new) as raw:
            with h5py.File(raw, "w", userblock_size=BLOCK) as file:
                file.attrs.update({"format": form, "format_version": versions(form)[0]})
                yield file
            seal(raw)
        check(new)
    _sync(path.parent)


@contextmanager
def instead(path: Path) -> Iterator[Path]:
    """Where to write a new file, which takes the place of `path` at once when the block ends
    without error. OSError.
    """
    new = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}{TEMPORARY}")
    try:
        yield new
        os.replace(new, path)
    finally:
        with suppress(OSError):  # gone after the rename; on a read-only disk it never was
            new.unlink()


def put(path: Path, content: bytes) -> None:
    """Make a small file, or replace it, at once; and its folder where it is missing. WriteError."""
    with convert_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with instead(path) as new:
            new.write_bytes(content)


@contextmanager
def open_file(path: Path, form: str, whole: bool = True) -> Iterator[h5py.File]:
    """The file at `path` for reading, after its seal, format and version are checked.

    whole: all of it is checked now, otherwise each part when it is first read.  Raises DamagedError
    if it is missing, cut short or altered, CheckpointError if it is foreign or of a version that
    this hpcfed does not read. A file that is replaced meanwhile stays readable as it was.
    """
    try:
        with (
            uncached.open_existing(regular(path)) as raw,
            h5py.File(verify_seal(path, raw, whole), "r") as file,
        ):
            with convert_read_errors(path):
                _check_format(path, file, form)
            yield file
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read: {error}; check the path") from error


@contextmanager
def convert_write_errors(path: Path) -> Iterator[None]:
    """What the disk refuses inside becomes a WriteError about the file at `path`."""
    try:
        yield
    except OSError as error:
        refused = WriteError(
            f"{path}: cannot be written: {error}; make room or choose another run folder"
        )
        refused.again = may_pass(error)
        raise refused from error


def _prepare(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{path.name}.*{TEMPORARY}"):
        leftover.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Make the rename last through a power cut."""
    with suppress(
        OSError
    ):  # some network file systems cannot sync a folder; the file itself is complete
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _check_format(path: Path, file: h5py.File, form: str) -> None:
    found, version = attribute(file, "format"), attribute(file, "format_version")
    if found != form:
        raise CheckpointError(f"{path}: holds {found}, not {form}; give a file of that kind")
    if version not in versions(form):
        who = (
            "a newer hpcfed"
            if version > versions(form)[0]
            else "the hpcfed that wrote it (results name its version)"
        )
        readable = " and ".join(map(str, versions(form)))
        raise CheckpointError(
            f"{path}: format version {version}, but this hpcfed reads version {readable}; use {who}"
        )
