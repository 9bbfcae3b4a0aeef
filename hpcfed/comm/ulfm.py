"""Fault tolerance of MPI (User-Level Failure Mitigation): a dead rank fails the others' calls, not
the whole run.

Open MPI 5 has it, and is told to use it by `mpirun --with-ft ulfm`. This file decides before MPI
starts; it needs no MPI library.
"""

import faulthandler
import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

SWITCH = "OMPI_MCA_mpi_ft_enable"  # set for each process by mpirun --with-ft ulfm
# Not made for faults: han and adapt returned wrong sums after a death, without an error; the other
# two say so.
UNFIT = ("han", "adapt", "hcoll", "portals4")
COLL = "OMPI_MCA_coll"


def available() -> bool:
    """Whether this run's MPI goes on without ranks that die."""
    return os.environ.get(SWITCH, "").lower() in ("1", "true", "yes")


def prepare(env: MutableMapping[str, str]) -> None:
    """Take the parts of Open MPI that survive a death, whatever else `env` asks for; before MPI
    starts.
    """
    env[COLL] = fit(env.get(COLL, ""))
    env["OMPI_MCA_pml"] = "ob1"  # the others are not made for faults
    env.setdefault(
        "OMPI_MCA_btl_base_warn_peer_error", "false"
    )  # deaths are expected, and told of by us


def fit(choice: str) -> str:
    """A choice of collective components (`a,b` for these, `^a,b` for all but these) without the
    unfit ones.
    """
    names = [name for name in choice.removeprefix("^").split(",") if name]
    if choice and not choice.startswith("^"):
        return ",".join(name for name in names if name not in UNFIT)
    return "^" + ",".join(dict.fromkeys([*names, *UNFIT]))


@contextmanager
def starting(seconds: float) -> Iterator[None]:
    """MPI starts inside the block, for which it has so many seconds; 0: as many as it takes.

    Open MPI 5 with ULFM waits there for ever for a rank that has ended before, and lets no Python
    run meanwhile. So all that can be done is what faulthandler does: say where this rank is, and
    end with status 1. To end by a signal would
    not do: with ULFM, mpirun takes that for no failure.
    """
    if not (seconds and available()):
        yield
        return
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
