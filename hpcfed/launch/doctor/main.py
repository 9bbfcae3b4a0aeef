"""`hpcfed doctor [JOB.toml ...]`: checks how runs will work on this machine, and what to change.

Facts that only ranks can know come from a small probe, which each launcher found starts. Exit
status: 0 if nothing is wrong (there may be warnings), 1 otherwise, 2 for a mistake in the job or
the command line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError
from hpcfed.core.tables import console
from hpcfed.launch.doctor import disk, hdf5, launcher_cache, launchers, mpi, ranks, slurm
from hpcfed.launch.doctor.finding import Finding, is_wrong, render
from hpcfed.launch.doctor.timeout import split
from hpcfed.launch.doctor.trials import Trial, launcher_finding

if TYPE_CHECKING:
    from hpcfed.config.job import Job

FINE, ILL = 0, 1
TYPICAL = 200_000_000  # bytes of a data set whose size is not known; CIFAR-10 takes 184 million


def doctor(
    jobs: Sequence[Path] = (),
    ranks: int | None = None,
    out: Path | None = None,
    slurm: str = "",
    limit: float = launchers.LIMIT,
    json: bool = False,
) -> int:
    """Examine this machine, print the findings, and return the exit status.

    jobs: job files, of which later ones override earlier ones.
    ranks: of the probe; by default Slurm's number of tasks, else 2.
    out: folder of runs.
    slurm: options of srun and salloc.
    limit: seconds for each probe.
    """
    n = number("SLURM_NTASKS", launchers.RANKS) if ranks is None else ranks
    if n < 1 or not limit > 0:
        raise ConfigError(
            f"--ranks {n} --limit {limit:g}: give at least one rank, and some seconds"
        )
    settings = load([str(path) for path in jobs])
    found = examine(settings, n, out or (settings.folder if jobs else Path("runs")), slurm, limit)
    show(found, json)
    return ILL if is_wrong(found) else FINE


def number(variable: str, otherwise: int) -> int:
    """Return the number in one of Slurm's environment variables, or `otherwise` if not set."""
    given = os.environ.get(variable, "")
    return int(given) if given.isdigit() else otherwise


def examine(job: Job, n: int, out: Path, options: str, limit: float) -> list[Finding]:
    """Return all findings, and store which launcher works under Slurm for `hpcfed submit`."""
    asked, plugins, facts = (
        split("slurm", options) if options else [],
        launchers.plugins(),
        mpi.library(limit),
    )
    tried = [launchers.trial(c, n, limit) for c in launchers.here(n, plugins, asked, limit)]
    works = [trial.launcher.name for trial in tried if trial.works]
    if plugins:
        launcher_cache.keep(works[0] if works else None)
    return [
        mpi.version(facts),
        mpi.one_world(works, tried),
        *(launcher_finding(trial, needed=not works) for trial in tried),
        mpi.gpu_aware(facts),
        mpi.ulfm(tried, limit),
        *rank_findings(tried, job),
        *disk.findings(out, limit),
        hdf5.finding(),
        *slurm.findings(plugins),
    ]


def rank_findings(tried: Sequence[Trial], job: Job) -> list[Finding]:
    """Return the findings of the ranks of the first launcher that works."""
    world = next((trial.worlds[0]["ranks"] for trial in tried if trial.works), None)
    if world is None:
        return []
    return [
        *ranks.nodes(world, number("SLURM_JOB_NUM_NODES", 0)),
        ranks.binding(world, job.run.threads),
        ranks.threads(world, job.run.threads),
        *ranks.gpus(world, job.run.ranks_per_gpu),
        ranks.shared_memory(world, amount(job)),
    ]


def amount(job: Job) -> int:
    """Return the bytes of the job's data set: those of its file, or a typical size."""
    own = Path(job.data.name)
    return next(
        (path.stat().st_size for path in (own, job.data.root / own) if path.is_file()), TYPICAL
    )


def show(found: Sequence[Finding], as_json: bool) -> None:
    """Print the findings, as a table or as JSON."""
    if as_json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        console().print(render(found))
