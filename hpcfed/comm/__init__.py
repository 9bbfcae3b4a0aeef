"""Communication between ranks: a few collectives, over one process or MPI.

Only this package imports mpi4py.
"""

from hpcfed.comm.connect import connect
from hpcfed.comm.protocol import Comm, Row
from hpcfed.comm.serial import Serial

__all__ = ["Comm", "Row", "Serial", "connect"]
