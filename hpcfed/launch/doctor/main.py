"""`hpcfed doctor [JOB.toml ...]`: checks how runs will work on this machine, and what to change.

Facts that only ranks can know come from a small probe, which each launcher starts. Exit status: 0
if nothing is wrong (there may be warnings), 1 otherwise, 2 for a mistake in the job or the command
line.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError
from hpcfed.core.tables import console
from hpcfed.core.wording import count_noun
from hpcfed.launch.doctor import disk, findings, launchers
from hpcfed.launch.doctor.findings import Finding, render
from hpcfed.launch.doctor.launchers import INSTALL, Trial
from hpcfed.launch.doctor.timeout import run_with_timeout, split

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
    n = slurm_number("SLURM_NTASKS", launchers.RANKS) if ranks is None else ranks
    if n < 1 or not limit > 0:
        raise ConfigError(
            f"--ranks {n} --limit {limit:g}: give at least one rank, and some seconds"
        )
    job = load([str(path) for path in jobs])
    options = split("slurm", slurm) if slurm else []
    report = examine(job, n, out or (job.folder if jobs else Path("runs")), options, limit)
    show(report, json)
    return ILL if any(finding.status == "wrong" for finding in report) else FINE


def slurm_number(variable: str, otherwise: int) -> int:
    """Return the number in one of Slurm's environment variables, or `otherwise` if not set."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else otherwise


def show(report: Sequence[Finding], as_json: bool) -> None:
    """Print the findings, as a table or as JSON."""
    if as_json:
        print(json.dumps([asdict(finding) for finding in report], indent=2))
    else:
        console().print(render(report))


def examine(job: Job, n: int, out: Path, options: list[str], limit: float) -> list[Finding]:
    """Return all findings."""
    silent = slurm_silent()
    plugins = launchers.list_srun_plugins() if shutil.which("srun") and not silent else []
    trials = [
        launchers.trial(launcher, n, limit)
        for launcher in launchers.here(n, plugins, options, limit)
    ]
    works = [trial for trial in trials if trial.works]
    report = [*launcher_findings(trials, works), rank_dies(works, limit)]
    if works:
        world = works[0].worlds[0]["ranks"]
        threads = job.run.threads
        report += [
            *findings.nodes(world, slurm_number("SLURM_JOB_NUM_NODES", 0)),
            findings.cores(world, threads),
            *findings.bfloat16(world, job.run.precision),
            *findings.gpus(world, job.run.ranks_per_gpu),
            *findings.shared_memory(world, data_size(job)),
        ]
    return [*report, disk.finding(out, limit), *silent]


def launcher_findings(trials: Sequence[Trial], works: Sequence[Trial]) -> list[Finding]:
    """Return which launcher to use, and a finding about each."""
    names = [trial.launcher.name for trial in works]
    alone = "without one, hpcfed runs on one rank"
    if works:
        others = f"; {', '.join(names[1:])} too" if names[1:] else ""
        text = f"use {names[0]}{others}; {works[0].worlds[0]['library']}"
        submit = f"hpcfed submit --launcher {shlex.quote(names[0])}" if shutil.which("srun") else ""
        report = [Finding("launcher", "ok", text, submit)]
    elif trials:
        advice = f"the next lines say why; {alone}"
        report = [Finding("launcher", "wrong", "none works", advice)]
    else:
        advice = f"{INSTALL}; {alone}"
        report = [Finding("launcher", "wrong", "no mpirun, mpiexec or srun", advice)]
    return report + [launcher_finding(trial, needed=not works) for trial in trials]


def launcher_finding(trial: Trial, needed: bool) -> Finding:
    """Return the finding about one launcher.

    needed: whether no other works, so that its failure must be fixed.
    """
    name = trial.launcher.name
    if not trial.works:
        return Finding(name, "wrong" if needed else "warning", *trial.failure())
    n = len({rank["node"] for rank in trial.worlds[0]["ranks"]})
    where = f"{trial.ranks} ranks on {count_noun(n, 'node')}"
    return Finding(name, "ok", f"{where} form one world ({trial.seconds:.1f} s)")


def rank_dies(works: Sequence[Trial], limit: float) -> Finding:
    """Return the finding whether a run continues when a rank dies."""
    mpiruns = [one.launcher for one in works if not one.launcher.name.startswith("srun")]
    if mpiruns and launchers.survives(mpiruns[0], limit):
        text = f"the others continue, with `{mpiruns[0].name} --with-ft ulfm` (ULFM)"
        return Finding("a rank dies", "ok", text)
    return Finding(
        "a rank dies",
        "warning",
        "the run ends: no mpirun with ULFM works here",
        "`hpcfed supervise` or Slurm's --requeue start it again from its checkpoint; Open MPI 5 "
        "has ULFM",
    )


def data_size(job: Job) -> int:
    """Return the bytes of the job's data set: those of its file, or a typical size."""
    name = Path(job.data.name)
    files = [path for path in (name, job.data.root / name) if path.is_file()]
    return files[0].stat().st_size if files else TYPICAL


def slurm_silent() -> list[Finding]:
    """Return a warning if Slurm is installed and its controller does not answer."""
    if not shutil.which("srun"):
        return []
    answer = run_with_timeout(["sinfo", "-h", "-o", "%P"], 10)
    if answer.status == 0:
        return []
    return [
        Finding(
            "Slurm",
            "warning",
            f"does not answer: {answer.last_error or 'no answer'}",
            "set SLURM_CONF, or ask those who run the cluster",
        )
    ]
