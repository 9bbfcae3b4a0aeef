"""A sweep as an array job of Slurm: each run is a task, which is queued again like other runs."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from hpcfed.core.errors import ConfigError
from hpcfed.launch.slurm import script
from hpcfed.launch.slurm.launcher import AUTO
from hpcfed.launch.slurm.resources import batch_of
from hpcfed.launch.slurm.submit import how_to_stop, sbatch
from hpcfed.launch.sweep.launch import continuing
from hpcfed.storage.sweep import Sweep, array_size

TASK = "--task $SLURM_ARRAY_TASK_ID"


def plan_batch(
    sweep: Sweep, ranks: int | None, launcher: str | None, **resources: Any
) -> tuple[Sweep, str]:
    """Return the sweep with the batch job's ranks and launcher, and the script of that job.

    ranks: of each run; None for those of the sweep if they are several, or else one for each GPU,
    or one on each node.
    launcher: auto, mpirun, srun, or a whole command.
    resources: fields of Batch.
    Raises ConfigError for more ranks than the job has tasks.
    """
    ranks = ranks or (sweep.ranks if sweep.ranks > 1 else None)
    if ranks and resources["ntasks_per_node"] is None:
        resources["ntasks_per_node"] = -(-ranks // max(1, resources["nodes"]))
    batch = batch_of(
        sweep.folder.name, [run.fields for run in sweep.runs], launcher or AUTO, **resources
    )
    tasks = batch.nodes * (batch.ntasks_per_node or 1)
    ranks = ranks or tasks
    if ranks > tasks:
        raise ConfigError(
            f"sweep: --ranks {ranks}, but {batch.nodes} nodes of --ntasks-per-node "
            f"{batch.ntasks_per_node} have {tasks} tasks; ask for more, or give fewer"
        )
    words = batch.starter() if ranks > 1 else []
    sweep = replace(sweep, ranks=ranks, launcher=shlex.join(words))
    task = continuing(replace(sweep, folder=sweep.folder.resolve()), TASK)
    return sweep, script.script(batch, f"watch {task}", array_size(sweep), takes_fields=False)


def submit(sweep: Sweep, text: str) -> str:
    """Submit the script, and return a message for the user.

    Raises ConfigError with Slurm's message if it is refused.
    """
    job = sbatch(text)
    return (
        f"submitted job {job}, {array_size(sweep)} tasks; hpcfed status {sweep.folder} shows how "
        f"far they are\n"
        f"{how_to_stop([job], waiting=True)}"
    )
