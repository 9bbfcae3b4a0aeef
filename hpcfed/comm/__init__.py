"""How ranks meet: few collective verbs, over one process, threads or MPI.

Alone here mpi4py is used.
"""

from hpcfed.comm.connect import connect
from hpcfed.comm.protocol import Comm, Row
from hpcfed.comm.serial import Serial
from hpcfed.comm.threads import Threads, spmd

__all__ = ["Comm", "Row", "Serial", "Threads", "connect", "spmd"]
