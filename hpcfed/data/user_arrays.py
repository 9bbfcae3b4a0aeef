"""Safe opening of users' files of arrays; each error of a library becomes one message."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import h5py
import numpy as np

from hpcfed.core.errors import DamagedError, DataError, HpcfedError
from hpcfed.core.paths import regular
from hpcfed.data import hdf5_check
from hpcfed.storage.untrusted import NUMBERS, STRINGS, check_dataset, child, subgroup

# time limit of the trial: seconds, plus one for each PACE bytes; a damaged file may never end
START, PACE = 60, 2**20


@contextmanager
def readable(path: Path, advice: str) -> Iterator[None]:
    """Convert errors of libraries over a missing, damaged or foreign file to DataError."""
    try:
        regular(path)
        yield
    except DamagedError as error:  # from `untrusted`, whose message lacks the advice
        raise DataError(f"{path}: cannot be read: {error}; {advice}") from error
    except HpcfedError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; {advice}") from error
    except Exception as error:  # h5py, numpy, zipfile and Pillow raise exceptions of any type
        raise DataError(
            f"{path}: cannot be read: {error or type(error).__name__}; {advice}"
        ) from error


@contextmanager
def add_path_to_errors(path: Path) -> Iterator[None]:
    """Add the file's path to the message of a DataError."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


@contextmanager
def hdf5(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file after a separate process has read all of it without a crash.

    Its contents are opened through `Nodes`.
    Raises DataError or OSError.
    """
    check_hdf5(path)
    with h5py.File(path, "r") as file:
        yield file


class Nodes(Mapping[str, "h5py.Group | h5py.Dataset"]):
    """Groups and arrays of a file by their path; links to other places are not followed."""

    def __init__(self, file: h5py.File):
        self.file = file

    def __getitem__(self, path: str) -> h5py.Group | h5py.Dataset:
        child(self.file.id, path)  # raises DamagedError if a link to another place is in the path
        return self.file[path]

    def __contains__(self, path: object) -> bool:
        *groups, last = str(path).split("/")
        above = subgroup(self.file.id, "/".join(groups)) if groups else self.file.id
        return last.encode() in above

    def __iter__(self) -> Iterator[str]:
        return iter(self.file)

    def __len__(self) -> int:
        return len(self.file)


def check_hdf5(path: Path) -> None:
    """Raise OSError for a file that HDF5 cannot read, crashes over, or does not finish reading.

    A file that has passed and has not changed since is not checked again by this process.
    """
    now = os.stat(path)
    check_once(path, now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


@lru_cache(maxsize=1024)  # errors are not cached: a failed check is repeated
def check_once(path: Path, device: int, inode: int, size: int, *times: int) -> None:
    """Check one state of a file, which the arguments identify, for `check_hdf5`."""
    limit = START + size // PACE
    env = os.environ | {"MPI4PY_RC_INITIALIZE": "0"}  # an h5py built for MPI would start it
    command = [sys.executable, "-P", hdf5_check.__file__, str(path)]
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"HDF5 does not come to its end within {limit} s") from error
    if done.returncode < 0:
        raise OSError(f"HDF5 crashes over it ({signal.Signals(-done.returncode).name})")
    if done.returncode:
        raise OSError(done.stderr.strip() or "HDF5 refuses it")


def whole(node: h5py.Dataset, where: str) -> np.ndarray:
    """Return all values of a dataset.

    Raises DataError for another object, and for a size that exceeds this machine's memory.
    """
    if not isinstance(node, h5py.Dataset) or node.shape is None:
        raise DataError(f"{where}: is not an array; store one there")
    fits(node.nbytes, where)
    check_dataset(node.id, NUMBERS + STRINGS, filters=True)
    return node[()]


def fits(size: int, where: str) -> None:
    """Raise DataError for an array of more bytes than memory; even a small file can declare it."""
    if size > hdf5_check.memory():
        raise DataError(
            f"{where}: declares {size / 2**30:.3g} GiB, more than this machine's memory; "
            "make the file again, or smaller"
        )
