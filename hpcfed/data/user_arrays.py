"""Users' files of arrays, opened with care: whatever a library makes of damaged bytes becomes one
message.
"""

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

START, PACE = (
    60,
    2**20,
)  # seconds, and bytes a second, that the trial may take; a damaged file may never end


@contextmanager
def readable(path: Path, advice: str) -> Iterator[None]:
    """Turn what the libraries raise inside, over a missing, damaged or foreign file, into a
    DataError.
    """
    try:
        regular(path)
        yield
    except DamagedError as error:  # of `untrusted`, which knows no advice
        raise DataError(f"{path}: cannot be read: {error}; {advice}") from error
    except HpcfedError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; {advice}") from error
    except Exception as error:  # h5py, numpy, zipfile and Pillow raise every kind there is
        raise DataError(
            f"{path}: cannot be read: {error or type(error).__name__}; {advice}"
        ) from error


@contextmanager
def add_path_to_errors(path: Path) -> Iterator[None]:
    """A DataError that does not know the file gets its name."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


@contextmanager
def hdf5(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file, after a process of its own has read it to the end and lived.

    Raises DataError or OSError.

    What is in it is opened by `untrusted.child`, or through `Nodes`.
    """
    check_hdf5(path)
    with h5py.File(path, "r") as file:
        yield file


class Nodes(Mapping[str, "h5py.Group | h5py.Dataset"]):
    """Groups and arrays of a file by their path; no link to another place is followed."""

    def __init__(self, file: h5py.File):
        self.file = file

    def __getitem__(self, path: str) -> h5py.Group | h5py.Dataset:
        return child(self.file, path)

    def __contains__(self, path: object) -> bool:
        *groups, last = str(path).split("/")
        above = subgroup(self.file, "/".join(groups)) if groups else self.file
        return above.get(last, getlink=True) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.file)

    def __len__(self) -> int:
        return len(self.file)


def check_hdf5(path: Path) -> None:
    """OSError for a file that HDF5 cannot read, crashes over, or does not come to the end of.

    A file that has passed and has not changed since is not read again by this process.
    """
    now = os.stat(path)
    check_once(path, now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


@lru_cache(maxsize=1024)  # an error is not kept: what failed is tried again
def check_once(path: Path, device: int, inode: int, size: int, *times: int) -> None:
    """`check_hdf5` of one state of a file, of which the arguments tell."""
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
    """All values of a dataset.

    DataError for what is none, or declares more than this machine has memory for.
    """
    if not isinstance(node, h5py.Dataset) or node.shape is None:
        raise DataError(f"{where}: is no array; store one there")
    fits(node.nbytes, where)
    check_dataset(node, NUMBERS + STRINGS, filters=True)
    return node[()]


def fits(size: int, where: str) -> None:
    """DataError where an array of so many bytes cannot be held; small files can declare it."""
    if size > hdf5_check.memory():
        raise DataError(
            f"{where}: declares {size / 2**30:.3g} GiB, more than this machine's memory; "
            "make the file again, or smaller"
        )
