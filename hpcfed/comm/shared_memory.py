"""Arrays in memory that the processes of a node share: a file in /dev/shm, mapped by each of them.

MPI has windows for this, but those of Open MPI are not made for runs that outlive a rank, and it
warns of them. A mapping stays valid when the process that made it dies.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from hpcfed.comm.protocol import Arrays, read_only
from hpcfed.core.errors import DataError

ALIGN = 64  # bytes; arrays start on a cache line
FOLDERS = (
    "/dev/shm",
    tempfile.gettempdir(),
)  # the first is in memory, but may be small in containers

PREFIX = "hpcfed-"  # of the names of such files; the number of the process that made it follows

Plan = Sequence[tuple[str, str, tuple[int, ...]]]  # name, dtype and shape of each array


def plan_of(arrays: Arrays) -> Plan:
    return [(name, array.dtype.str, array.shape) for name, array in arrays.items()]


def write(arrays: Arrays) -> str:
    """Write the arrays to a new file and return its path.

    Raises DataError if no folder has enough space.
    """
    for folder in FOLDERS:
        with suppress(OSError):
            return _write(folder, arrays)
    size = sum(array.nbytes for array in arrays.values())
    raise DataError(
        f"no room for {size} bytes of data that the ranks of a node share, neither in "
        f"{' nor in '.join(FOLDERS)}; "
        "give the container more shared memory, or set TMPDIR to a folder with room"
    )


def _write(folder: str, arrays: Arrays) -> str:
    handle, path = tempfile.mkstemp(prefix=f"{PREFIX}{os.getpid()}-", dir=folder)
    try:
        # not through a mapping: without space that would end the process
        with open(handle, "wb") as file:
            for start, array in zip(_starts(plan_of(arrays)), arrays.values(), strict=False):
                file.seek(start)
                file.write(np.ascontiguousarray(array).data)
            file.truncate(list(_starts(plan_of(arrays)))[-1])
    except OSError:
        os.unlink(path)
        raise
    return path


def read(path: str, plan: Plan) -> Arrays:
    """Return the arrays of a file written by `write`, read-only.

    The file may be removed as soon as this returns.
    """
    memory = np.memmap(path, np.uint8, "r")
    parts = zip(plan, _starts(plan), strict=False)
    return read_only(
        {name: np.ndarray(shape, dtype, memory, start) for (name, dtype, shape), start in parts}
    )


def _starts(plan: Plan) -> Iterator[int]:
    """Yield the offset of each array in bytes, then the size of the file, which is never 0."""
    at = 0
    for _, dtype, shape in plan:
        yield at
        at += -(-int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize // ALIGN) * ALIGN
    yield max(at, ALIGN)
