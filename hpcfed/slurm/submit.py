"""`hpcfed submit JOB.toml [--field value ...] --nodes 4 --time 04:00:00`: a run as a batch job."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcfed.config.job import Job
from hpcfed.config.load import load
from hpcfed.engine import folder
from hpcfed.errors import ConfigError
from hpcfed.slurm import script
from hpcfed.slurm.launcher import launcher
from hpcfed.slurm.script import NOTICE, Batch
from hpcfed.storage import checkpoint, names

SPARE = 60  # seconds of notice beyond run.grace, for the last checkpoint on a slow file system


def submit(words: Sequence[str], dry_run: bool, chain: int, launcher: str, each: list[str] | None,
           ranks: str | None, **asked: Any) -> str:  # fmt: skip
    """Submit what these fields mean, or with dry_run return the script.

    words: `[JOB.toml] [--field value ...]`.  chain: jobs, each of which goes on where the one before stopped.
    each: more fields, for one task of an array job each.  ranks: "1,2,4", a run for each number of ranks.
    asked: of Batch.  Raises ConfigError for a job that is wrong, or that Slurm refuses.
    """
    tasks = [split("each", fields) for fields in each or []]
    split("launcher", launcher)
    if (chain > 1) + bool(each) + bool(ranks) > 1 or chain < 1:
        raise ConfigError(f"submit: --chain {chain}, --each and --ranks: one of the three, and a chain of 1 or more")
    jobs = checked(words, tasks)
    batch = batch_of(jobs, launcher, chain > 1, **asked)
    texts = [script.run(batch, words), *[script.run(batch, words, again=True)] * (chain - 1)]
    if tasks:
        texts = [script.array(batch, words, tasks)]
    elif ranks:
        texts = [script.study(batch, words, str(folder.of(jobs[0])), counts(ranks))]
    if dry_run:
        return texts[0].rstrip("\n")
    for job in jobs:
        free(job)
    return told(sbatch_all(texts), jobs)


def split(option: str, text: str) -> list[str]:
    """The words of an option that has several."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"submit: --{option} {text}: {str(error).lower()}") from error
    if not words:
        raise ConfigError(f"submit: --{option}: it is empty")
    return words


def checked(words: Sequence[str], tasks: Sequence[Sequence[str]]) -> list[Job]:
    """The jobs of all tasks, or the one there is; ConfigError if two write to the same folder."""
    jobs = [load([*words, *more], folder.stored) for more in tasks or [[]]]
    folders = [folder.of(job) for job in jobs]
    for i, path in enumerate(folders):
        if path in folders[:i]:
            raise ConfigError(f"submit: tasks {folders.index(path)} and {i} write to the same folder, {path}; give "
                              "each its own --out")  # fmt: skip
    return jobs


def batch_of(jobs: Sequence[Job], wanted: str, chain: bool, **asked: Any) -> Batch:
    """What is asked for, with what follows from the job and from this Python's place."""
    name = folder.of(jobs[0]).name if len(jobs) == 1 else "hpcfed"
    notice = max(NOTICE, int(max(job.run.grace for job in jobs)) + SPARE)
    return Batch(name, launcher=launcher(wanted), chain=chain, notice=notice, restarts=jobs[0].run.max_restarts,
                 made_by=made_by(), **completed(asked))  # fmt: skip


def completed(asked: dict[str, Any]) -> dict[str, Any]:
    """What is asked for, with a rank for each GPU of a node, or one, and with this Python."""
    gpus = (asked["gpus_per_node"] or "1").rpartition(":")[2]  # a number, or TYPE:NUMBER
    tasks = asked["ntasks_per_node"] or (int(gpus) if gpus.isdigit() else 1)
    return asked | {"ntasks_per_node": tasks, "env": (*python_first(), *(asked["env"] or []))}


def python_first() -> list[str]:
    """A line for the script where `hpcfed` on the PATH, and with it `python`, is not this one."""
    here = Path(sys.executable).parent
    found = shutil.which("hpcfed")
    return [] if found and Path(found).parent == here else [f"export PATH={shlex.quote(str(here))}:$PATH"]


def made_by() -> str:
    """The command line of this process, so that a script tells where it comes from."""
    return shlex.join(["hpcfed", *sys.argv[1:]])


def counts(ranks: str) -> list[int]:
    """Numbers of ranks, from "1,2,4"."""
    numbers = ranks.split(",")
    if not all(n.isdigit() and int(n) for n in numbers):
        raise ConfigError(f"submit: --ranks {ranks}: numbers of ranks with commas between, such as 1,2,4")
    return [int(n) for n in numbers]


def free(job: Job) -> None:
    """ConfigError where a run is in the way, rather than hours later in the queue."""
    run = folder.of(job)
    there = os.path.exists(names.results_file(run)) and not checkpoint.newest(run)
    if there and not (job.resume or job.overwrite):
        raise ConfigError(f"out: {run} holds a run that has saved nothing; replace it with --overwrite, or give "
                          "another --out")  # fmt: skip


def sbatch_all(texts: Sequence[str]) -> list[str]:
    """Submit one script after the other, each to begin when the one before has ended; their ids."""
    ids: list[str] = []
    for text in texts:
        ids.append(sbatch(text, [f"--dependency=afterany:{ids[-1]}"] if ids else []))
    return ids


def sbatch(text: str, options: Sequence[str] = ()) -> str:
    """Submit a script; returns the job's id. ConfigError in Slurm's words where it refuses."""
    try:
        done = subprocess.run(["sbatch", "--parsable", *options], input=text, capture_output=True, text=True)
    except OSError as error:
        raise ConfigError(f"submit: cannot call sbatch: {error.strerror}; call this where Slurm is, or give --dry-run "
                          "for the script alone") from error  # fmt: skip
    if done.returncode:
        raise ConfigError(f"submit: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]  # JOB, or JOB;CLUSTER


def told(ids: Sequence[str], jobs: Sequence[Job]) -> str:
    """What a user needs to know of what is in the queue now."""
    several = f"jobs {', '.join(ids)}, one after the other" if len(ids) > 1 else f"job {ids[0]}"
    where = ", ".join(str(folder.of(job)) for job in jobs)
    return f"submitted {several}; results in {where}\nto save and stop: scancel --batch --signal=TERM {' '.join(ids)}"
