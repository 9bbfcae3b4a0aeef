"""Whether a launcher is that of the MPI library.

Decided before MPI starts, where it may end the process without a word.
"""

from collections.abc import Mapping

OURS = ("Open MPI", "Spectrum MPI", "hpcx", "HPC-X")  # libraries that Open MPI's mpirun starts
STARTED = "OMPI_COMM_WORLD_SIZE"  # set by Open MPI's mpirun
# set by other launchers, which may be inside such an mpirun, and count then
INSIDE = ("PMI_SIZE", "PMI_RANK", "MV2_COMM_WORLD_SIZE")


class Foreign(Exception):
    """mpi4py's library is another one than the launcher's."""


def check(library: str, env: Mapping[str, str]) -> None:
    """Raise Foreign where Open MPI's mpirun started a process with another library: MPICH, say,
    ends it with status 16, or starts a world of one rank. library: as MPI describes it.
    """
    if STARTED not in env or any(name in env for name in INSIDE):
        return
    if not any(name.lower() in library.lower() for name in OURS):
        name = " ".join(library.strip("\0").split("\n")[0].split(",")[0].split())
        raise Foreign(f"mpi4py's library is {name or 'another one'}")
