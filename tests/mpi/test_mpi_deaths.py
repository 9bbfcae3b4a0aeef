"""Ranks are killed: the others are told in whatever verb they are, shrink, and go on with what they
shared.
"""

import pytest

from tests import limits
from tests.mpirun import mpirun, ulfm

DEATHS = """
import os, signal
import numpy as np
from hpcfed.comm import connect
from hpcfed.core.errors import RankLost

comm = connect()
me, data = comm.rank, comm.share(lambda: {"x": np.arange(6.0)})
ones = np.ones(40_000)  # more than one call's worth
verbs = {
    "sum": lambda: comm.sum([[ones]], [ones.shape]),
    "gather": lambda: comm.gather({me: ones}),
    "bcast": lambda: comm.bcast(ones, 0),
    "move": lambda: (comm.move(ones, 0, 1), comm.barrier()),
    "share": lambda: comm.share(lambda: {"x": ones}),
    "barrier": lambda: comm.barrier(),
}
for verb, call in verbs.items():
    dead = (0, 2) if verb == "barrier" else (0,) if verb in ("bcast", "move", "share") else (1,)
    comm.confirm()
    if comm.rank in dead:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        call()
        comm.confirm()
    except Exception as error:
        assert isinstance(error, RankLost) or comm.broken()
        gone = comm.shrink()
    total = comm.sum([[np.ones(2)]], [(2,)])[0].tolist()
    order = [*comm.gather({comm.rank: me}).values()]
    right = total == [comm.size] * 2, order == sorted(order), data["x"].sum() == 15
    print(me, verb, tuple(gone) == dead, *right, len(comm.node_of) == comm.size, flush=True)
print(me, "left of", comm.size, comm.lost, flush=True)
comm.close()
os._exit(0)
"""

EARLY = """
import os, signal
from hpcfed.comm import connect

if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
connect(2)
"""


@pytest.mark.alone
def test_whoever_dies_in_whatever_verb_the_others_go_on():
    done = mpirun(9, "-c", DEATHS, timeout=limits.COMMAND, options=ulfm())
    lines = done.stdout.splitlines()
    told = [line.split() for line in lines if " left of " not in line]
    assert {verb for _, verb, *_ in told} == {"sum", "gather", "bcast", "move", "share", "barrier"}
    assert [line for line in told if line[2:] != ["True"] * 5] == []
    assert [line.split()[1:] for line in lines if " left of " in line] == [
        ["left", "of", "2", "7"]
    ] * 2
    assert "WARNING" not in done.stderr


def test_ranks_do_not_wait_for_ever_for_one_that_died_before_mpi_began():
    done = mpirun(3, "-c", EARLY, timeout=limits.COMMAND, options=ulfm(), check=False)
    assert done.returncode == 1
    assert "MPI has not started within 2 s (run.watchdog): a rank is stopped or gone" in done.stderr
