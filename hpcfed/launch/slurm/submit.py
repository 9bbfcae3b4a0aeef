"""`hpcfed submit JOB.toml ... [--field value ...] --nodes 4 --time 04:00:00`: a batch job."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hpcfed.config.job import Job
from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError
from hpcfed.engine import folder
from hpcfed.launch.doctor.timeout import split
from hpcfed.launch.slurm import script
from hpcfed.launch.slurm.launcher import AUTO
from hpcfed.launch.slurm.resources import batch_of
from hpcfed.launch.slurm.script import Batch
from hpcfed.results.state import RUNNING, SIGNS, state
from hpcfed.storage import checkpoint, lock
from hpcfed.storage.fields import flat

DIGITS = 6  # of the digest of a folder's path
OURS = "hpcfed"  # first word of the comment of a batch job
COMMENT = 1024  # characters of a comment that slurmctld takes
QUEUE = 30.0  # seconds to wait for squeue


def submit(
    words: Sequence[str],
    dry_run: bool,
    chain: int,
    launcher: str,
    each: list[str] | None,
    ranks: str | None,
    **resources: Any,
) -> str:
    """Submit a run, or with dry_run return the script.

    words: `[JOB.toml ...] [--field value ...]`.
    chain: number of jobs, each of which continues where the one before stopped.
    each: further fields, for one task of an array job each.
    ranks: "1,2,4", a run for each number of ranks.
    resources: fields of Batch.
    Raises ConfigError for a job that is wrong, or that Slurm refuses.
    """
    tasks = [split("each", fields) for fields in each or []]
    if (chain > 1) + bool(each) + bool(ranks) > 1 or chain < 1:
        raise ConfigError(
            f"submit: --chain {chain}, --each and --ranks: one of the three, and a chain of 1 or "
            f"more"
        )
    jobs = load_jobs(words, tasks)
    most = (COMMENT - len(OURS)) // (1 + DIGITS)
    if len(jobs) > most:
        raise ConfigError(
            f"submit: {len(jobs)} times --each: Slurm's comment of a job has room for the marks of "
            f"{most} runs; give --each at most {most} times, and submit the others as another array"
        )
    place, runs = folder.of(jobs[0]), [flat(job.plain()) for job in jobs]
    batch = batch_of("hpcfed" if tasks else place.name, runs, launcher, chain > 1, **resources)
    numbers = counts(ranks, batch) if ranks else []
    if numbers:
        jobs = load_jobs(words, [["--out", f"{place}-ranks{n}"] for n in numbers])
    text = partial(make_script, batch, words, tasks, str(place), numbers)
    if dry_run:
        return text([]).rstrip("\n")
    for job in jobs:
        free(job)
    comment = " ".join([OURS, *map(mark, jobs)])
    return submission_message(
        sbatch_all(text, chain, comment),
        jobs,
        waiting=bool(chain > 1 or tasks),
        guess=batch.launcher if launcher == AUTO else (),
    )


def make_script(
    batch: Batch,
    words: Sequence[str],
    tasks: Sequence[Sequence[str]],
    out: str,
    numbers: Sequence[int],
    before: Sequence[str],
) -> str:
    """Return the script. before: ids of the links of a chain that come before this one."""
    if tasks:
        return script.array(batch, words, tasks)
    if numbers:
        return script.study(batch, words, out, numbers)
    return script.run(batch, words, before)


def load_jobs(words: Sequence[str], tasks: Sequence[Sequence[str]]) -> list[Job]:
    """Return the jobs of all tasks, or the single job.

    Raises ConfigError if two write to the same folder.
    """
    jobs = [load([*words, *more], folder.read_job) for more in tasks or [[]]]
    folders = [folder.of(job) for job in jobs]
    for i, path in enumerate(folders):
        if path in folders[:i]:
            raise ConfigError(
                f"submit: tasks {folders.index(path)} and {i} write to the same folder, {path}; "
                f"give "
                "each its own --out"
            )
    return jobs


def counts(ranks: str, batch: Batch) -> list[int]:
    """Return numbers of ranks from "1,2,4".

    Raises ConfigError for anything else, or for more than the job has tasks.
    """
    numbers, most = ranks.split(","), batch.nodes * (batch.ntasks_per_node or 1)
    if not all(n.isdecimal() and int(n) for n in numbers):
        raise ConfigError(
            f"submit: --ranks {ranks}: numbers of ranks with commas between, such as 1,2,4"
        )
    if max(map(int, numbers)) > most:
        raise ConfigError(
            f"submit: --ranks {ranks}: the job has {most} tasks, nodes times --ntasks-per-node; "
            f"ask for "
            "more, or run on fewer ranks"
        )
    return [int(n) for n in numbers]


def free(job: Job) -> None:
    """Raise ConfigError if another run uses the folder, instead of hours later in the queue."""
    run = folder.of(job)
    if (holder := lock.find_holder(run)) and not job.force:
        raise ConfigError(
            f"out: another run has {run}: {holder}; wait for its end, end it, or give another --out"
        )
    if state(run).word == RUNNING:
        raise ConfigError(
            f"out: a run is in progress in {run}: its files say so, or did {SIGNS:g} s ago; two in "
            "one folder would damage it; wait for its end, or give another --out"
        )
    if (waiting := waiting_job(mark(job))) and not job.force:
        raise ConfigError(
            f"out: job {waiting} in the queue is to run in {run}, and would continue there after "
            f"this one; wait for its end, cancel it (scancel {waiting}), or give another --out"
        )
    if not (job.resume or job.overwrite or checkpoint.newest(run)) and folder.holds(run):
        raise ConfigError(
            f"out: {run} holds a run that has saved nothing; replace it with --overwrite, or give "
            "another --out"
        )


def mark(job: Job) -> str:
    """Return the word by which a batch job in the queue names the folder of its run."""
    place = str(folder.of(job).resolve())
    return hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:DIGITS]


def waiting_job(name: str) -> str:
    """Return the id of a job of this user that waits in Slurm's queue with this mark, or ""."""
    words = ["squeue", "--me", "--noheader", "--states=PENDING,CONFIGURING", "--format=%A %k"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=QUEUE)
    except (OSError, subprocess.SubprocessError):  # sbatch will say what is wrong
        return ""
    rows = (line.split() for line in done.stdout.splitlines())
    return next((job for job, *words in rows if words[:1] == [OURS] and name in words[1:]), "")


def sbatch_all(text: Callable[[list[str]], str], chain: int, comment: str) -> list[str]:
    """Submit a chain of scripts, each to begin when the one before has ended; return their ids.

    text: returns a script, given the ids of those before.
    comment: by which `waiting_job` finds them.
    """
    ids: list[str] = []
    while len(ids) < chain:
        try:
            after = [f"--dependency=afterany:{ids[-1]}"] if ids else []
            ids.append(sbatch(text(ids), [f"--comment={comment}", *after]))
        except ConfigError as error:
            if not ids:
                raise
            raise ConfigError(
                f"{error}\n  submitted before that: {' '.join(ids)}; scancel takes them back"
            ) from error
    return ids


def sbatch(text: str, options: Sequence[str] = ()) -> str:
    """Submit a script and return the job's id.

    Raises ConfigError with Slurm's message if it is refused.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", *options], input=text, capture_output=True, text=True
        )
    except OSError as error:
        raise ConfigError(
            f"submit: cannot call sbatch: {error.strerror}; call this on a machine with "
            "Slurm, or give --dry-run to print only the script"
        ) from error
    if done.returncode:
        raise ConfigError(f"submit: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]  # JOB, or JOB;CLUSTER


def submission_message(
    ids: Sequence[str], jobs: Sequence[Job], waiting: bool, guess: Sequence[str]
) -> str:
    """Return a message for the user about the submitted jobs.

    waiting: whether some of them wait while others run.
    guess: a launcher that has not been tested.
    """
    several = f"jobs {', '.join(ids)}, one after the other" if len(ids) > 1 else f"job {ids[0]}"
    where = ", ".join(str(folder.of(job)) for job in jobs)
    doubt = [
        f"the ranks are started by {shlex.join(guess)}; `hpcfed doctor` finds out whether that "
        f"works"
    ]
    return "\n".join(
        [
            f"submitted {several}; results in {where}",
            *(doubt if guess else []),
            how_to_stop(ids, waiting),
        ]
    )


def how_to_stop(ids: Sequence[str], waiting: bool) -> str:
    """Return the commands that save and stop the jobs.

    Waiting jobs get no signal, and would begin when the others have stopped.
    """
    pending = f"scancel --state=PENDING {' '.join(ids)}; " if waiting else ""
    quiet = "--quiet " if waiting else ""  # about jobs that the first command has cancelled
    return (
        "to save and stop (a plain scancel may leave the ranks no time to): "
        f"{pending}scancel {quiet}--batch --signal=TERM {' '.join(ids)}"
    )
