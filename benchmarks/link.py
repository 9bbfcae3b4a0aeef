"""What MPI sees of the link between two nodes, whose ranks exchange messages, both ways at once.

mpirun -np 4 --host a:2,b:2 python benchmarks/link.py    # prints latency [s] and bandwidth
[bytes/s, each way]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # to be run from anywhere

from hpcfed.comm.mpi_init import MPI  # with its settings

SHORT, LONG = 8, 1 << 19  # bytes; a line of a large message of a sum
TIMES, BLOCKS = 10, 5


def main() -> None:
    comm, each = MPI.COMM_WORLD, MPI.COMM_WORLD.size // 2
    latency, line = (
        exchange(comm, (comm.rank + each) % comm.size, nbytes) for nbytes in (SHORT, LONG)
    )
    if comm.rank == 0:
        print(json.dumps([latency, each * LONG / (line - latency)]))


def exchange(comm: MPI.Intracomm, other: int, nbytes: int) -> float:
    """Seconds in which all ranks exchange this number of bytes with their partners, repeatedly.

    The least of some blocks: ranks that share a core may have to wait for their turn.
    """
    payload, got, seconds = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8), []
    for _ in range(BLOCKS):
        comm.Barrier()
        begin = perf_counter()
        for _ in range(TIMES):
            comm.Sendrecv(payload, other, recvbuf=got, source=other)
        seconds.append(comm.allreduce(perf_counter() - begin, MPI.MAX) / TIMES)
    return min(seconds)


if __name__ == "__main__":
    main()
