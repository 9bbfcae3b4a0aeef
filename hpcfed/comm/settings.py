"""Settings of Open MPI that hpcfed makes before MPI starts, unless the user has set them.

This file needs no MPI library.
"""

import os
from collections.abc import MutableMapping

from hpcfed.comm.sum_messages import EAGER

HERE = "OMPI_COMM_WORLD_LOCAL_SIZE"  # ranks of this node; set for each process by mpirun
YIELD = "OMPI_MCA_mpi_yield_when_idle"


def prepare(env: MutableMapping[str, str], cores: int) -> None:
    """Set environment variables for long messages over TCP, and for ranks that share cores.

    cores: the number of cores that this rank may use.
    Open MPI announces a long message before it sends it. Over TCP the announcement waits behind
    messages in the same direction, so an exchange in both directions goes one way after the other,
    and takes 1.7 times as long. So messages of sums are sent without it. Ranks that wait in a call
    keep their core busy, even if another rank could use it, unless Open MPI knows of more ranks
    than slots; it does not count the cores that ranks may use.
    """
    for limit in ("eager_limit", "rndv_eager_limit", "max_send_size"):
        env.setdefault(f"OMPI_MCA_btl_tcp_{limit}", str(EAGER))
    ranks = env.get(HERE, "")
    if ranks.isdecimal() and int(ranks) > cores:
        env.setdefault(YIELD, "true")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
