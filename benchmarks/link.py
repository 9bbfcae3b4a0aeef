"""What MPI sees of the link between two nodes, whose ranks exchange messages, both ways at once.

    mpirun -np 4 --host a:2,b:2 python benchmarks/link.py    # prints latency [s] and bandwidth [bytes/s, each way]

That may be less than the wire has: TCP's acknowledgements wait behind what travels the other way.
"""

from __future__ import annotations

import json
from statistics import median
from time import perf_counter

import numpy as np
from mpi4py import MPI

SHORT, LONG = 8, 1 << 19  # bytes; a line of a large message of a sum
TIMES = 15
ANNOUNCED = 3  # latencies of a long message (hpcfed.plan.network)


def main() -> None:
    comm, each = MPI.COMM_WORLD, MPI.COMM_WORLD.size // 2
    latency, line = (exchange(comm, (comm.rank + each) % comm.size, nbytes) for nbytes in (SHORT, LONG))
    if comm.rank == 0:
        print(json.dumps([latency, each * LONG / (line - ANNOUNCED * latency)]))


def exchange(comm: MPI.Intracomm, other: int, nbytes: int) -> float:
    """Seconds until all ranks have exchanged so many bytes with their partners."""
    given, got, seconds = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8), []
    for _ in range(TIMES):
        comm.Barrier()
        begin = perf_counter()
        comm.Sendrecv(given, other, recvbuf=got, source=other)
        seconds.append(comm.allreduce(perf_counter() - begin, MPI.MAX))
    return median(seconds)


if __name__ == "__main__":
    main()
