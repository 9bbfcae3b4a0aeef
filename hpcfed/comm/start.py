"""Importing this file starts MPI, as hpcfed wants it; MPI ends by itself when Python does."""

import os

import mpi4py

from hpcfed.comm import ulfm
from hpcfed.comm.messages import EAGER

mpi4py.rc.thread_level = "funneled"  # only the main thread calls MPI; torch's threads never do
# Over TCP, Open MPI's word that a long message may come waits behind what goes the same way: an exchange both ways then
# goes one way after the other, and takes 1.7 times as long. Messages of sums go unasked.
for limit in ("eager_limit", "rndv_eager_limit", "max_send_size"):
    os.environ.setdefault(f"OMPI_MCA_btl_tcp_{limit}", str(EAGER))
if ulfm.available():
    ulfm.prepare(os.environ)

from mpi4py import MPI  # noqa: E402  (reads the settings above)

__all__ = ["MPI"]
