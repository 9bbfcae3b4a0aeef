"""Resources of a batch job: those that the user gives, and those that follow from its runs.

They also include the environment of this Python.
"""

from __future__ import annotations

import os
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
    resources = fill_tasks(resources)
    if most["threads"] > 1 and resources["cpus_per_task"] is None:
        resources["cpus_per_task"] = most["threads"]
    resources["sbatch"] = tuple(resources["sbatch"] or ())
    resources["env"] = (*python_first(alone(resources["sbatch"])), *(resources["env"] or []))
    return Batch(
        name or "hpcfed",
        launcher=launcher(wanted),
        chain=chain,
        restarts=most["max_restarts"],
        notice=max(NOTICE, int(most["grace"]) + SPARE),
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
    gpus = (resources["gpus_per_node"] or "").rpartition(":")[2]  # a number, or TYPE:NUMBER
    tasks = resources["ntasks_per_node"] or (int(gpus) if gpus.isdecimal() else 1) or 1
    return resources | {"ntasks_per_node": tasks}


def alone(options: Sequence[str]) -> bool:
    """Return whether jobs begin without the submitting user's environment, as on some sites."""
    return "SBATCH_EXPORT" in os.environ or any(option.startswith("--export") for option in options)


def python_first(always: bool) -> list[str]:
    """Return a line for the script that puts this Python on the PATH.

    Returns none if `hpcfed` on the PATH is this one already, unless `always`.
    """
    here, command = Path(sys.executable).parent, shutil.which("hpcfed")
    on_path = command and Path(command).parent == here and not always
    return [] if on_path else [f"export PATH={shlex.quote(str(here))}:$PATH"]


def command_line() -> str:
    """Return the command line of this process, to record the origin of a script."""
    return shlex.join(["hpcfed", *sys.argv[1:]])
