"""Check of the HDF5 library that results and checkpoints are written with."""

from __future__ import annotations

import ctypes

from hpcfed.comm.mpi_library import library_path
from hpcfed.launch.doctor.finding import Finding, ok, wrong

OLDEST = (1, 10)


def finding() -> Finding:
    """Return the finding about the HDF5 build.

    A serial build is enough, thread-safe or not, because each rank writes files of its own.
    """
    try:
        import h5py
    except (ImportError, OSError) as error:
        return wrong("HDF5", f"h5py cannot be loaded: {error}", "pip install h5py")
    safe, parallel = (
        {True: "thread-safe", False: "not thread-safe", None: ""}[thread_safe()],
        h5py.get_config().mpi,
    )
    found = (
        f"{h5py.version.hdf5_version} {safe}, {'parallel' if parallel else 'serial'}, h5py "
        f"{h5py.__version__}"
    )
    if h5py.version.hdf5_version_tuple[:2] < OLDEST:
        return wrong("HDF5", found, "pip install 'h5py>=3.10'")
    return ok("HDF5", f"{found}; serial is all that hpcfed needs")


def thread_safe() -> bool | None:
    """Return whether the library that h5py uses is thread-safe; None if it is not found."""
    answer = ctypes.c_bool()
    try:
        ctypes.CDLL(library_path("libhdf5")).H5is_library_threadsafe(ctypes.byref(answer))
    except (OSError, AttributeError):
        return None
    return answer.value
