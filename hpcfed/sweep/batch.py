"""A sweep as an array job of Slurm: each run is a task, which is queued again and goes on as any other run."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from hpcfed.slurm import script
from hpcfed.slurm.launcher import AUTO
from hpcfed.slurm.launcher import launcher as known
from hpcfed.slurm.script import Batch
from hpcfed.slurm.submit import completed, made_by, sbatch
from hpcfed.storage.sweep import Sweep, array_size

PYTHON = ["python", "-m", "hpcfed.main"]  # the end of what starts ranks; the task itself adds its own


def arranged(found: Sweep, ranks: int | None, launcher: str | None, **asked: Any) -> tuple[Sweep, str]:
    """The sweep with its ranks and launcher as the batch job has them, and the script of that job.

    ranks: of each run; None: one for each GPU, or one on each node.  launcher: auto, mpirun, srun, or a whole command.
    asked: of Batch.
    """
    words = known(launcher or AUTO)
    batch = Batch(found.folder.name, launcher=words, made_by=made_by(), **completed(asked))
    ranks = ranks or batch.nodes * batch.ntasks_per_node
    words = batch.ranks()[: -len(PYTHON)] if ranks > 1 else []
    folder = shlex.quote(str(found.folder.resolve()))
    text = script.script(batch, f"watch hpcfed sweep --task $SLURM_ARRAY_TASK_ID {folder}", array_size(found))
    return replace(found, ranks=ranks, launcher=shlex.join(words)), text


def submit(found: Sweep, text: str) -> str:
    """Submit the script; what a user needs to know of it. ConfigError in Slurm's words where it refuses."""
    job = sbatch(text)
    return (f"submitted job {job}, {array_size(found)} tasks; hpcfed status {found.folder} tells how far they are\n"
            f"to save and stop: scancel --batch --signal=TERM {job}")  # fmt: skip
