"""Fault tolerance of MPI (User-Level Failure Mitigation, ULFM).

A dead rank makes the others' calls fail, instead of ending the whole run. Open MPI 5 has it, and
enables it by `mpirun --with-ft ulfm`. This file decides before MPI starts; it needs no MPI library.
"""

import faulthandler
import os
import socket
import subprocess
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager

SWITCH = "OMPI_MCA_mpi_ft_enable"  # set for each process by mpirun --with-ft ulfm
# Not made for faults: han and adapt returned wrong sums after a death, without an error; the other
# two say so.
UNFIT = ("han", "adapt", "hcoll", "portals4")
COLL = "OMPI_MCA_coll"


def available() -> bool:
    """Return whether this run's MPI can continue without ranks that die."""
    return os.environ.get(SWITCH, "").lower() in ("1", "true", "yes")


def prepare(env: MutableMapping[str, str]) -> None:
    """Select the components of Open MPI that survive a death, whatever else `env` asks for.

    Call it before MPI starts.
    """
    env[COLL] = fit(env.get(COLL, ""))
    env["OMPI_MCA_pml"] = "ob1"  # the others do not tolerate faults
    # deaths are expected, and reported by hpcfed
    env.setdefault("OMPI_MCA_btl_base_warn_peer_error", "false")


def fit(choice: str) -> str:
    """Return a choice of collective components without those that do not survive a death.

    choice: `a,b` for these components, `^a,b` for all but these.
    """
    names = [name for name in choice.removeprefix("^").split(",") if name]
    if choice and not choice.startswith("^"):
        return ",".join(name for name in names if name not in UNFIT)
    return "^" + ",".join(dict.fromkeys([*names, *UNFIT]))


@contextmanager
def limit_start(seconds: float) -> Iterator[None]:
    """Limit the seconds in which MPI may start inside the block; 0 is no limit.

    MPI waits there for ever for a rank that is stopped, Open MPI 5 with ULFM also for one that has
    ended before, and no Python code runs meanwhile. So faulthandler ends this process, with status
    1. Its traceback goes to a shell, which prints a one-line message instead. A signal would not
    do: with ULFM, mpirun does not take that for a failure.
    """
    if not seconds:
        yield
        return
    text = (
        f"hpcfed: process {os.getpid()} on {socket.gethostname()}: MPI has not started within "
        f"{seconds:g} s (run.watchdog): a rank is stopped or gone; the start ends here"
    )
    with ExitStack() as stack:
        try:
            says = stack.enter_context(speaker(text))
        except OSError:  # there is no shell
            says = 2  # stderr
        faulthandler.dump_traceback_later(seconds, exit=True, file=says)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def speaker(text: str) -> Iterator[int]:
    """Yield a file descriptor: once a line is written to it, this text is printed on stderr.

    It is printed even if this process has ended.
    """
    with subprocess.Popen(
        ["/bin/sh", "-c", 'read -r line && echo "$0" >&2; cat > /dev/null', text],
        stdin=subprocess.PIPE,
        process_group=0,
    ) as shell:
        assert shell.stdin
        yield shell.stdin.fileno()
