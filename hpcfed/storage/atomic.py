"""Atomic writing of files: a file is complete or absent.

A file is written under a temporary name and then renamed, so readers see the old file or the new
one, whenever the writer is killed. HDF5 files are also flushed to the disk, and get a checksum
(`checksum`) that detects the change of a single byte.

HDF5 writes through a Python file here: its own driver ends the process with a segmentation fault
when the disk is full, and locks files, which some parallel file systems refuse.
"""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import h5py
from h5py import h5f, h5p

from hpcfed.core.errors import CheckpointError, DamagedError, WriteError, may_pass
from hpcfed.core.safe_read import convert_read_errors
from hpcfed.storage import names, uncached
from hpcfed.storage.checksum import BLOCK, intact, verify_checksum, write_checksum
from hpcfed.storage.untrusted import attribute

VERSIONS = {names.RESULTS: 2, names.CHECKPOINT: 4}  # of each format; 1: of those not named here
TEMPORARY = ".tmp"
IMAGES = count()  # numbers of the files in memory


def version_of(form: str) -> int:
    """Return the version of a format, which is the only one that is written and read."""
    return VERSIONS.get(form, 1)


@contextmanager
def replace_file(path: Path, form: str) -> Iterator[h5py.File]:
    """Yield a new HDF5 file that replaces `path` when the block ends without error.

    Before that the file is compared with its checksums, which are of what was written.
    Makes the folder if necessary, and removes temporary files that killed writers of the same file
    left. Raises WriteError if the file cannot be written (no space, no permission, no disk); `path`
    is then unchanged.
    """
    with convert_write_errors(path), instead(path) as new:
        _prepare(path)
        with uncached.new(new) as raw:
            with uncached.deferring(raw), h5py.File(raw, "w", userblock_size=BLOCK) as file:
                file.attrs.update({"format": form, "format_version": version_of(form)})
                yield file
            write_checksum(raw)
        if not intact(new):
            raise OSError(errno.EIO, "what was written cannot be read back", str(new))
    _sync(path.parent)


@contextmanager
def instead(path: Path) -> Iterator[Path]:
    """Yield a temporary path; its file replaces `path` atomically when the block succeeds.

    Raises OSError.
    """
    new = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}{TEMPORARY}")
    try:
        yield new
        os.replace(new, path)
    finally:
        with suppress(OSError):  # gone after the rename; on a read-only disk it never was
            new.unlink()


def put(path: Path, content: bytes) -> None:
    """Write or replace a small file atomically, and make its folder if necessary.

    Raises WriteError.
    """
    with convert_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with instead(path) as new:
            new.write_bytes(content)


@contextmanager
def open_file(path: Path, form: str, verify_all: bool = True) -> Iterator[h5py.File]:
    """Yield the file at `path`, open for reading, after checking its checksum, format and version.

    verify_all: whether all data are checked now; otherwise each MiB when it is first read.
    Raises DamagedError if the file is missing, cut short or altered, or if the block meets contents
    that it does not expect; CheckpointError if the file is of another format or of a version that
    this hpcfed does not read. A file that is replaced meanwhile stays readable as it was.
    """
    with convert_read_errors(path), ExitStack() as stack:
        try:
            raw = stack.enter_context(uncached.open_existing(path))
            verified = verify_checksum(path, raw, verify_all)
            opened = open_image(verified) if isinstance(verified, bytes) else verified
            file = stack.enter_context(h5py.File(opened, "r"))
        except (OSError, ValueError) as error:
            raise DamagedError(f"{path}: cannot be read: {error}; check the path") from error
        _check_format(path, file, form)
        yield file


def open_image(content: bytes) -> h5f.FileID:
    """Open an HDF5 file in memory, which HDF5 reads faster than a Python file. Raises OSError."""
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_fapl_core(backing_store=False)
    access.set_file_image(content)
    # no file has such a name, and no two images: HDF5 would take them for one file
    return h5f.open(b"/dev/null/%d" % next(IMAGES), h5f.ACC_RDONLY, fapl=access)


@contextmanager
def convert_write_errors(path: Path) -> Iterator[None]:
    """Convert an OSError in the block into a WriteError about the file at `path`."""
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
    """Flush the folder to the disk, so that a rename survives a power cut."""
    # some network file systems cannot sync a folder; the file itself is complete
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _check_format(path: Path, file: h5py.File, form: str) -> None:
    actual, version = attribute(file.id, "format"), attribute(file.id, "format_version")
    if actual != form:
        raise CheckpointError(f"{path}: holds {actual}, not {form}; give such a file")
    if version != version_of(form):
        older = "the hpcfed that wrote it (results name its version)"
        who = "a newer hpcfed" if version > version_of(form) else older
        raise CheckpointError(
            f"{path}: format version {version}, but this hpcfed reads version {version_of(form)}; "
            f"use {who}"
        )
