"""Starts MPI, with hpcfed's settings, when it is imported; MPI ends when Python does.

Raises `launcher_check.Foreign`, before MPI starts, if the launcher is another library's.
"""

import os

import mpi4py

from hpcfed.comm import launcher_check, settings, ulfm

mpi4py.rc.initialize = False  # not before the library is known to be the launcher's
mpi4py.rc.finalize = True
settings.prepare(os.environ, settings.cores())
if ulfm.available():
    ulfm.prepare(os.environ)

from mpi4py import MPI  # noqa: E402  (reads the settings above)

launcher_check.check(MPI.Get_library_version(), os.environ)
if not MPI.Is_initialized():
    MPI.Init_thread(MPI.THREAD_FUNNELED)  # only the main thread calls MPI; torch's threads never do

__all__ = ["MPI"]
