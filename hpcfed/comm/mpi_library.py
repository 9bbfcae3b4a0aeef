"""The MPI library's description of itself. MPI is loaded for this, but not started."""

import re


def library() -> str:
    """Return the name and version of the MPI library, and mpi4py's version.

    Raises ImportError, RuntimeError or OSError if mpi4py or an MPI library for it is missing.
    """
    import mpi4py

    mpi4py.rc.initialize = False  # without effect if MPI runs already
    from mpi4py import MPI

    name = re.split(r"[,\n]", MPI.Get_library_version().strip("\0"))[0].strip()
    return f"{name}, mpi4py {mpi4py.__version__}"
