"""The text of a batch script (job.sh); nothing here looks at the machine or starts anything.

A script handles time limits and requeueing. Slurm sends SIGUSR1 to it some time before the limit,
or when the job is preempted (--signal); it passes that on to `hpcfed supervise`, which asks the
ranks to save and stop. Then the job queues itself again, in the same run folder. A job that Slurm
itself queues again, because a node has failed or without a warning, continues from the last
checkpoint.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from hpcfed.core.errors import ConfigError
from hpcfed.core.exit_status import DONE, RESUME_ME, WRONG

NOTICE = 120  # seconds from the signal to the end of a job, if it is to have no more
# Fields of Batch that are options of sbatch, by the same name.
OPTIONS = (
    "nodes",
    "ntasks_per_node",
    "gpus_per_node",
    "cpus_per_task",
    "mem",
    "time",
    "partition",
    "account",
    "qos",
    "constraint",
)


@dataclass(frozen=True)
class Batch:
    """The options of a batch job.

    Names, units and forms are sbatch's, and None leaves an option to the site.
    sbatch: further options of sbatch, as on its command line.
    at_once: tasks of an array that may run at a time.
    env: lines of shell that prepare each start, such as `module load openmpi`.
    container: an image, for the ranks.
    launcher: the words that start the ranks.
    restarts: how often the job may have been queued again.
    notice: seconds from the signal to the end of the job.
    chain: whether it is a link of a chain of jobs, which does not queue itself again, because the
    next link continues.
    threads: of each rank.
    python: the word that starts Python.
    made_by: the command that writes this script.
    """

    name: str
    nodes: int = 1
    ntasks_per_node: int | None = None
    gpus_per_node: str | None = None
    cpus_per_task: int | None = None
    mem: str | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch: tuple[str, ...] = ()
    at_once: int | None = None
    env: tuple[str, ...] = ()
    container: str | None = None
    launcher: tuple[str, ...] = ("mpirun",)
    restarts: int = 10
    notice: int = NOTICE
    chain: bool = False
    threads: int = 1
    python: str = "python"
    made_by: str = ""

    def ranks(self) -> list[str]:
        """Return the words that start the ranks on all nodes, up to the fields of the job."""
        return [*self.starter(), self.python, "-m", "hpcfed.main"]

    def starter(self) -> list[str]:
        """Return the words before the ranks' own command."""
        several = (self.cpus_per_task or 1) > 1
        if self.launcher[0] == "srun":  # it does not inherit this from the job
            cores = [f"--cpus-per-task={self.cpus_per_task}"] if several else []
        else:  # else all threads of a rank share one core
            cores = ["--bind-to", "none"] if several else []
        on_gpus = self.gpus_per_node or any("gpu" in o or o.startswith("-G") for o in self.sbatch)
        gpus = ["--nv"] if on_gpus else []
        image = ["apptainer", "exec", *gpus, self.container] if self.container else []
        return [*self.launcher, *cores, *image]


def run(batch: Batch, fields: Sequence[str], before: Sequence[str] = ()) -> str:
    """Return the script of one run.

    before: ids of the jobs that work on the run before this one.
    """
    return script(batch, supervise_command(batch, quote_words(fields), before))


def array(batch: Batch, fields: Sequence[str], each: Sequence[Sequence[str]]) -> str:
    """Return the script of an array job: one run for each of these lists of further fields."""
    cases = "".join(f'  {i}) set -- {quote_words(more)} "$@" ;;\n' for i, more in enumerate(each))
    return script(
        batch,
        f"case $SLURM_ARRAY_TASK_ID "
        f"in\n{cases}esac\n{supervise_command(batch, quote_words(fields))}",
        len(each),
    )


def study(batch: Batch, fields: Sequence[str], folder: str, counts: Sequence[int]) -> str:
    """Return the script of one run on several numbers of ranks, one after the other, in one job.

    Each number has a folder of its own, whatever fields are changed when the script is submitted.
    """
    one = supervise_command(
        batch,
        quote_words(fields),
        options="-n $ranks",
        last=f" --out {quote_words([folder])}-ranks$ranks",
        indent="  ",
    )
    numbers = " ".join(map(str, counts))
    return script(
        batch, f"for ranks in {numbers}; do\n{one}\n  [ $status = {DONE} ] || break\ndone"
    )


def supervise_command(
    batch: Batch,
    fields: str,
    before: Sequence[str] = (),
    options: str = "",
    last: str = "",
    indent: str = "",
) -> str:
    """Return the command that does one run, or the rest of it.

    fields: quoted.
    before: as in `run`.
    options: of the launcher.
    last: words after the fields that are given when the script is submitted.
    """
    launcher, *others = batch.ranks()
    jobs = " ".join(f"--job {one}" for one in (*before, "$SLURM_JOB_ID"))
    start = " ".join(filter(None, [quote_words([launcher]), options, quote_words(others), fields]))
    return f'{indent}watch hpcfed supervise {jobs} -- \\\n{indent}  {start} "$@"{last}'


def fill(name: str, **values: object) -> str:
    """Return the text of a file beside this one with these values in place of @name or @{name}."""
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"@\{?([a-z]+)\}?", lambda place: str(values[place[1]]), text)


def script(batch: Batch, body: str, tasks: int = 0, takes_fields: bool = True) -> str:
    """Return the whole script around a body.

    body: starts commands that are to receive signals by `watch`, and leaves its status in $status.
    tasks: number of tasks of an array job.
    takes_fields: whether the body gives fields after the script's name to the run.
    """
    # an array's id means all tasks
    job = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if tasks else "$SLURM_JOB_ID"
    requeue = fill("requeue.sh", done=DONE, wrong=WRONG, restarts=batch.restarts, job=job)
    return fill(
        "job.sh",
        directives="\n".join(directives(batch, tasks)),
        fields="sbatch THIS --rounds 200 changes fields of the run; " if takes_fields else "",
        again="" if batch.chain else "again=yes; ",
        resume=RESUME_ME,
        threads=batch.threads,
        env="".join(f"{one_line('env', line)}\n" for line in batch.env),
        body=body,
        requeue="" if batch.chain else requeue,
    )


def directives(batch: Batch, tasks: int) -> list[str]:
    """Return the command that writes the script, and the lines that sbatch reads."""
    options = {option.replace("_", "-"): getattr(batch, option) for option in OPTIONS}
    array = f"0-{tasks - 1}" + (f"%{batch.at_once}" if batch.at_once else "")
    options |= {
        "array": array if tasks else None,
        "signal": f"B:USR1@{batch.notice}",
        "open-mode": "append",
    }
    values = {"job-name": batch.name} | {k: v for k, v in options.items() if v is not None}
    return [
        *([f"# {one_line('command', batch.made_by)}"] if batch.made_by else []),
        *(
            f"#SBATCH --{name}={one_line(name, quote_words([str(value)]))}"
            for name, value in values.items()
        ),
        "#SBATCH --requeue",
        *(f"#SBATCH {one_line('sbatch', option)}" for option in batch.sbatch),
    ]


def quote_words(words: Sequence[str]) -> str:
    """Return words quoted for the shell."""
    return shlex.join(words)


def one_line(what: str, text: str) -> str:
    """Return the text. Raises ConfigError if it would not stay on one line of the script."""
    if not text.isprintable():
        raise ConfigError(f"submit: {what}: one line without control characters, got {text!r}")
    return text
