"""Check that the launcher belongs to the MPI library.

It is made before MPI starts, because with a wrong launcher MPI may end the process silently.
"""

from collections.abc import Mapping

OURS = ("Open MPI", "Spectrum MPI", "hpcx", "HPC-X")  # libraries that Open MPI's mpirun starts
STARTED = "OMPI_COMM_WORLD_SIZE"  # set by Open MPI's mpirun
# set by other launchers, which may be inside such an mpirun, and count then
INSIDE = ("PMI_SIZE", "PMI_RANK", "MV2_COMM_WORLD_SIZE")


class Foreign(Exception):
    """The launcher does not belong to the MPI library that mpi4py uses."""


def check(library: str, env: Mapping[str, str]) -> None:
    """Raise Foreign if Open MPI's mpirun started a process that uses another MPI library.

    MPICH, for example, would end the process with status 16, or start a world of one rank.
    library: the library's own description of itself.
    """
    if STARTED not in env or any(name in env for name in INSIDE):
        return
    if not any(name.lower() in library.lower() for name in OURS):
        name = " ".join(library.strip("\0").split("\n")[0].split(",")[0].split())
        raise Foreign(f"mpi4py's library is {name or 'another one'}")
