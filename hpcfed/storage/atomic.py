"""HDF5 files that are complete or absent, and that say so when a single byte has changed.

A file is written under a temporary name, sealed, flushed to the disk and then renamed: whoever opens it
sees the old file or the new one, whenever the writer is killed. The seal is a text with the SHA-256 of all
that follows it, in the user block: 512 bytes before the HDF5 data that every HDF5 tool skips. It is
checked before HDF5 reads the file, because HDF5 may crash on damaged data.

HDF5 writes through a Python file here: its own driver ends the process with a segmentation fault when the
disk is full, and locks files, which some parallel file systems refuse.
"""

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import h5py

from hpcfed.errors import CheckpointError
from hpcfed.paths import regular
from hpcfed.storage import names

VERSIONS = {names.RESULTS: 1, names.CHECKPOINT: 3}  # checkpoints, 3: only of clients that keep something
BLOCK = 512  # bytes: the smallest user block that HDF5 allows
SEAL = b"hpcfed sha256 "
TEMPORARY = ".tmp"


@contextmanager
def replacing(path: Path, form: str) -> Iterator[h5py.File]:
    """A new HDF5 file of the given format that takes the place of `path` when the block ends without error.

    Makes the folder where it is missing, and removes what killed writers left in it. Raises
    CheckpointError if the file cannot be written (no space, no permission); `path` is then as before.
    """
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}{TEMPORARY}")
    try:
        with explained(path, "written", "make room or choose another run folder"):
            _prepare(path.parent)
            with open(temporary, "x+b") as raw:
                with h5py.File(raw, "w", userblock_size=BLOCK) as file:
                    file.attrs.update({"format": form, "format_version": VERSIONS.get(form, 1)})
                    yield file
                _seal(raw)
            os.replace(temporary, path)
    finally:
        with suppress(OSError):  # gone after the rename; on a read-only disk it never was
            temporary.unlink()
    _sync(path.parent)


@contextmanager
def opened(path: Path, form: str) -> Iterator[h5py.File]:
    """The file at `path` for reading, after its seal, format and version are checked.

    Raises CheckpointError if it is missing, cut short, altered, foreign or of another version. A file that
    is replaced meanwhile stays readable as it was.
    """
    with explained(path, "read", "check the path"), open(regular(path), "rb") as raw:
        _check_seal(path, raw)
        with h5py.File(raw, "r") as file:
            _check_format(path, file, form)
            yield file


@contextmanager
def explained(path: Path, what: str, advice: str) -> Iterator[None]:
    """What the system says of a file becomes a CheckpointError that names it."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be {what}: {error}; {advice}") from error


def _prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f".*{TEMPORARY}"):
        leftover.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Make the rename last through a power cut."""
    with suppress(OSError):  # some network file systems cannot sync a folder; the file itself is complete
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _checksum(raw: BinaryIO) -> bytes:
    raw.seek(BLOCK)
    digest = hashlib.file_digest(raw, "sha256").hexdigest()
    return (SEAL + digest.encode() + b"\n").ljust(BLOCK, b"\0")


def _seal(raw: BinaryIO) -> None:
    block = _checksum(raw)
    raw.seek(0)
    raw.write(block)
    raw.flush()
    os.fsync(raw.fileno())


def _check_seal(path: Path, raw: BinaryIO) -> None:
    block = raw.read(BLOCK)
    if not block.startswith(SEAL):
        raise CheckpointError(f"{path}: not a file of hpcfed, or its beginning is damaged")
    if block != _checksum(raw):
        raise CheckpointError(f"{path}: damaged: the checksum does not fit, so it was cut short or altered")


def _check_format(path: Path, file: h5py.File, form: str) -> None:
    found, version = file.attrs["format"], file.attrs["format_version"]
    if found != form:
        raise CheckpointError(f"{path}: holds {found}, not {form}; give a file of that kind")
    if version != (ours := VERSIONS.get(form, 1)):
        raise CheckpointError(
            f"{path}: format version {version}, but this hpcfed reads version {ours}; "
            "use the hpcfed that wrote it (results name its version)"
        )
