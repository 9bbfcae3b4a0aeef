"""Trial read of a whole HDF5 file in a process of its own.

HDF5 may crash over damaged bytes; a crash here harms no other process. The program is called as
`python hdf5_check.py FILE`. Its exit status is 0 if the file can be read to its end. Otherwise it
is 1, with the reason on stderr, or a signal ends the process.
"""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import h5py

# a script finds modules in its own folder only; the modules imported here need no torch or MPI
sys.path[0:0] = [str(Path(__file__).resolve().parents[2])]

from hpcfed.core.errors import DamagedError, plain  # noqa: E402
from hpcfed.storage.untrusted import NUMBERS, STRINGS, check_dataset  # noqa: E402

CHUNK = 2**26  # bytes read at a time
PROCESS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")  # control groups, in Linux


def memory() -> int:
    """Return the bytes of memory that this machine has, or that this process may use of it."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *control_groups()]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min([*limits, limit] if limit != resource.RLIM_INFINITY else limits)


def control_groups(process: Path = PROCESS, groups: Path = GROUPS) -> Iterator[int]:
    """Yield the limits of memory of the control groups that this process is in.

    They are those of a container, or of a batch job. A group's parents have limits too.
    process: a line "number:controllers:path" for each hierarchy; version 2 names no controllers.
    """
    lines = process.read_text().splitlines() if process.exists() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if "memory" in controllers.split(","):
            top, file = groups / "memory", "memory.limit_in_bytes"
        elif not controllers:
            top, file = groups, "memory.max"
        else:
            continue
        inner = top / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(top):
                with suppress(OSError, ValueError):  # it has no limit, or one of "max"
                    yield int((folder / file).read_text())


def read(name: str, node: h5py.Group | h5py.Dataset) -> None:
    """Read all attributes and values of one group or dataset."""
    dict(node.attrs)
    if not isinstance(node, h5py.Dataset) or node.shape is None or node.nbytes > memory():
        return  # hpcfed.data.user_arrays refuses arrays that do not fit
    try:
        check_dataset(node.id, NUMBERS + STRINGS, filters=True)
    except DamagedError:
        return  # user_arrays refuses it too, if it is used
    if not node.shape:
        node[()]
        return
    rows = max(1, CHUNK * len(node) // max(1, node.nbytes))
    for start in range(0, len(node), rows):
        node[start : start + rows]


def main(path: str) -> int:
    """Read the file and return the exit status."""
    try:
        with h5py.File(path, "r") as file:
            file.visititems(read)
    except Exception as error:  # HDF5 raises exceptions of any type
        print(plain(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
