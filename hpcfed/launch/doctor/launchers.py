"""Search for a launcher whose ranks form one world: each one starts a probe with a time limit."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

from hpcfed.launch.doctor.timeout import outside, run_with_timeout
from hpcfed.launch.doctor.trials import Launcher, Trial

PLUGINS = ("pmix", "pmi2", "cray_shasta")  # of srun --mpi, in the order in which they are tried
STARTERS = ("mpirun", "mpiexec")
PROBE = (sys.executable, "-m", "hpcfed.launch.doctor.probe")
LIMIT = 60.0  # seconds for each probe
RANKS = 2


def here(
    ranks: int, plugins: Sequence[str], slurm: Sequence[str] = (), limit: float = LIMIT
) -> list[Launcher]:
    """Return the launchers of this machine.

    plugins: of srun.
    slurm: options of srun and salloc that the site requires.
    """
    return candidates(
        ranks, starters(sys.executable), plugins, slurm, "SLURM_JOB_ID" in os.environ, limit
    )


def candidates(
    ranks: int,
    mpiruns: Sequence[str],
    plugins: Sequence[str],
    slurm: Sequence[str],
    inside: bool,
    limit: float,
) -> list[Launcher]:
    """Return ways to start so many ranks, the best first.

    srun comes first, because it places and counts ranks, and passes signals on to them.
    inside: whether this process is in a Slurm allocation, whose nodes mpirun uses; otherwise the
    probe asks for nodes of its own, and gives up if none is free in time.
    """
    ask = [] if inside else [f"--immediate={max(1, int(limit))}"]
    many = ["-n", str(ranks)]
    found = [
        Launcher(f"srun --mpi={name}", ("srun", f"--mpi={name}", *ask, *many, *slurm))
        for name in PLUGINS
        if name in plugins
    ]
    hold = ("salloc", "--quiet", *ask, *many, *slurm) if plugins and not inside else ()
    return found + [
        Launcher(shlex.quote(path), (*hold, path, "-np", str(ranks))) for path in mpiruns
    ]


def starters(python: str, path: str | None = None) -> list[str]:
    """Return mpirun, or mpiexec, beside this Python and the first on the PATH.

    It is given by its short name if that is the one on the PATH.
    """
    found: dict[str, str] = {}
    for folder in (path, str(Path(python).parent)):
        name = next((n for n in STARTERS if shutil.which(n, path=folder)), "")
        full = shutil.which(name, path=folder) if name else None
        if full:
            found.setdefault(os.path.realpath(full), name if folder == path else full)
    return list(found.values())


def plugins() -> list[str]:
    """Return the MPI plugins of srun; empty without Slurm, or if its controller does not answer."""
    if not shutil.which("srun") or run_with_timeout(["sinfo", "-h", "-o", "%P"], 10).status != 0:
        return []
    return list_srun_plugins()


def list_srun_plugins() -> list[str]:
    """Return the MPI plugins that srun knows; empty without srun.

    The controller need not answer.
    """
    said = run_with_timeout(["srun", "--mpi=list"], 10)
    return re.findall(r"^(?:srun:)?\s*([a-z]\w*)\s*$", said.out + said.err, re.M)


def trial(
    launcher: Launcher, ranks: int, limit: float, env: Mapping[str, str] = os.environ
) -> Trial:
    """Start the probe with this launcher, and return its outcome."""
    start = monotonic()
    outcome = run_with_timeout([*launcher.words, *PROBE], limit, outside(env))
    return Trial(launcher, ranks, outcome, monotonic() - start)
