"""Importing this file starts MPI, as hpcfed wants it; MPI ends by itself when Python does."""

import os

import mpi4py

from hpcfed.comm import settings, ulfm

mpi4py.rc.thread_level = "funneled"  # only the main thread calls MPI; torch's threads never do
settings.prepare(os.environ, settings.cores())
if ulfm.available():
    ulfm.prepare(os.environ)

from mpi4py import MPI  # noqa: E402  (reads the settings above)

__all__ = ["MPI"]
