"""Resources of a batch job: those that the user gives, and those that follow from its runs.

They also include the environment of this Python.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcfed.core.errors import ConfigError
from hpcfed.launch.slurm.launcher import launcher
from hpcfed.launch.slurm.script import NOTICE, Batch
from hpcfed.storage.fields import Fields

SPARE = 60  # seconds of notice beyond run.grace, for the last checkpoint on a slow file system
LOOKS = 60  # seconds, two of Slurm's looks at time limits, by which a signal may come early
# options of sbatch that ask for GPUs, with their number: of a node, and of the job; with
# --gpus-per-task it follows from the number of ranks, and not the other way round
OF_JOB = re.compile(r"(?:--gpus|-G)(?:[= ]|(?=\d))(?:[^ :]+:)?(\d+)")
GPUS = (
    re.compile(r"--gres[= ](?:[^ ]*,)?gpu(?::[a-zA-Z][^ :,]*)?(?::(\d+))?(?=[,( ]|$)"),
    re.compile(r"--gpus-per-node[= ](?:[^ :]+:)?(\d+)"),
    OF_JOB,
)


def batch_of(
    name: str, runs: Sequence[Fields], wanted: str, chain: bool = False, **resources: Any
) -> Batch:
    """Return a batch job that gives each of these runs what it needs.

    runs: the fields of their jobs.
    wanted: the launcher of the ranks, or auto.
    resources: fields of Batch.
    Raises ConfigError for impossible values.
    """
    most = {
        field: max(run[f"run.{field}"] for run in runs)
        for field in ("grace", "max_restarts", "threads")
    }
    resources = fill_tasks(resources | {"sbatch": tuple(resources["sbatch"] or ())})
    if most["threads"] > 1 and resources["cpus_per_task"] is None:
        resources["cpus_per_task"] = most["threads"]
    resources["env"] = (*python_first(alone(resources["sbatch"])), *(resources["env"] or []))
    notice = max(NOTICE, int(most["grace"]) + SPARE)
    check_time(resources.get("time"), notice)
    return Batch(
        name or "hpcfed",
        launcher=launcher(wanted),
        chain=chain,
        restarts=most["max_restarts"],
        notice=notice,
        python="python" if resources.get("container") else python_word(),
        threads=most["threads"],
        made_by=command_line(),
        **resources,
    )


def fill_tasks(resources: dict[str, Any]) -> dict[str, Any]:
    """Return the resources with one rank for each GPU of a node by default, or one.

    Raises ConfigError for a number below 1.
    """
    for name in ("nodes", "ntasks_per_node", "cpus_per_task"):
        if resources[name] is not None and resources[name] < 1:
            raise ConfigError(
                f"submit: --{name.replace('_', '-')} {resources[name]}: give at least 1"
            )
    number = resources["gpus_per_node"]
    options = [f"--gpus-per-node={number}"] if number else resources["sbatch"]
    gpus = max((gpus_of(option, resources["nodes"]) for option in options), default=0)
    return resources | {"ntasks_per_node": resources["ntasks_per_node"] or max(1, gpus)}


def gpus_of(option: str, nodes: int) -> int:
    """Return the number of GPUs of a node for which an option of sbatch asks.

    0: for none, or for as many as there are ranks.
    """
    number = next(filter(None, (form.search(option) for form in GPUS)), None)
    if not number:
        return 0
    return int(number[1] or 1) // (nodes if number.re is OF_JOB else 1)


def check_time(time: str | None, notice: int) -> None:
    """Raise ConfigError if a job's time is over when Slurm asks the run to save and stop."""
    limit = seconds_of(time or "")
    if limit is not None and limit <= notice + LOOKS:
        raise ConfigError(
            f"submit: --time {time}: Slurm asks the run to save and stop {notice} s before the "
            f"end, and looks every {LOOKS // 2} s, so that no time is left for the run; give a "
            f"longer --time, or a smaller run.grace"
        )


def seconds_of(time: str) -> int | None:
    """Return the seconds of a time in one of sbatch's forms; None: it is in none of them."""
    days, _, clock = time.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in (days or "0", *parts)) or len(parts) > 3:
        return None
    numbers = [int(part) for part in parts]
    if not days and len(numbers) < 3:  # MINUTES or MINUTES:SECONDS
        numbers = [0, *numbers]
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds


def alone(options: Sequence[str]) -> bool:
    """Return whether jobs begin without the submitting user's environment, as on some sites."""
    return "SBATCH_EXPORT" in os.environ or any(option.startswith("--export") for option in options)


def python_first(always: bool) -> list[str]:
    """Return a line for the script that puts `hpcfed` of this Python on the PATH.

    Returns none if `hpcfed` on the PATH is this one already, unless `always`. If the command lies
    elsewhere than Python (pip install --user), its folder comes last, because that of Python may be
    the system's, with an mpirun of its own.
    """
    here, command = Path(sys.executable).parent, shutil.which("hpcfed")
    if command and Path(command).parent != here and not (here / "hpcfed").exists():
        elsewhere = shlex.quote(str(Path(command).parent))
        return [f"export PATH=$PATH:{elsewhere}"] if always else []
    on_path = command and Path(command).parent == here and not always
    return [] if on_path else [f"export PATH={shlex.quote(str(here))}:$PATH"]


def python_word() -> str:
    """Return the word that starts this Python in the script.

    It is `python` if that lies beside `hpcfed`, whose folder the script finds on the PATH.
    """
    here = Path(sys.executable).parent
    beside = (here / "hpcfed").exists() and (here / "python").exists()
    return "python" if beside else sys.executable


def command_line() -> str:
    """Return the command line of this process, to record the origin of a script."""
    return shlex.join(["hpcfed", *sys.argv[1:]])
