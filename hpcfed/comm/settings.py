"""What Open MPI is told before it starts, where nobody has told it otherwise.

This file needs no MPI library.
"""

import os
from collections.abc import MutableMapping

from hpcfed.comm.messages import EAGER

HERE = "OMPI_COMM_WORLD_LOCAL_SIZE"  # ranks of this node; set for each process by mpirun
YIELD = "OMPI_MCA_mpi_yield_when_idle"


def prepare(env: MutableMapping[str, str], cores: int) -> None:
    """Settings for long messages over TCP, and for ranks that share cores.

    cores: that this rank may use.

    Open MPI's word that a long message may come waits behind what goes the same way: over TCP an
    exchange both ways then goes one way after the other, and takes 1.7 times as long. So messages
    of sums go unasked. And ranks that wait in a call keep their core busy, also where another rank
    has work for it, unless Open MPI knows of more ranks than
    slots: it does not count the cores that ranks may use.
    """
    for limit in ("eager_limit", "rndv_eager_limit", "max_send_size"):
        env.setdefault(f"OMPI_MCA_btl_tcp_{limit}", str(EAGER))
    ranks = env.get(HERE, "")
    if ranks.isdecimal() and int(ranks) > cores:
        env.setdefault(YIELD, "true")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
