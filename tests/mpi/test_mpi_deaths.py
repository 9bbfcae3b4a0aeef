"""Ranks are killed: the others are told in whatever verb they are, shrink, and go on with what they
shared.
"""

from tests import limits
from tests.mpirun import mpirun, ulfm

EARLY = """
import os, signal
from hpcfed.comm import connect

if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
connect(2)
"""


def test_ranks_do_not_wait_for_ever_for_one_that_died_before_mpi_began():
    done = mpirun(3, "-c", EARLY, timeout=limits.COMMAND, options=ulfm(), check=False)
    assert done.returncode == 1
    assert "MPI has not started within 2 s (run.watchdog): a rank is stopped or gone" in done.stderr
