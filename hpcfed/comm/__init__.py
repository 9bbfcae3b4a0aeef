"""Communication between ranks: a few collectives, over one process, threads or MPI.

Only this package imports mpi4py.
"""

from hpcfed.comm.connect import connect
from hpcfed.comm.protocol import Comm, Row
from hpcfed.comm.serial import Serial
from hpcfed.comm.threads import Threads, spmd

__all__ = ["Comm", "Row", "Serial", "Threads", "connect", "spmd"]
