"""Check of Slurm: whether it is installed, its partitions, and the MPI plugins of srun."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from hpcfed.core.wording import join_few
from hpcfed.launch.doctor.finding import Finding, ok, warning
from hpcfed.launch.doctor.timeout import run_with_timeout

SHOWN = 8  # partitions


def findings(plugins: Sequence[str]) -> list[Finding]:
    """Return the findings about Slurm. plugins: of srun --mpi, from `launchers.plugins`."""
    if not shutil.which("srun"):
        return [ok("Slurm", "none here; `hpcfed supervise` restarts runs on machines without one")]
    answer = run_with_timeout(["sinfo", "-h", "-o", "%P %D nodes %c cores %G %l"], 10)
    if answer.status != 0:
        said = answer.last_error or "no answer"
        return [
            warning(
                "Slurm",
                f"does not answer: {said}",
                "set SLURM_CONF, or ask those who run the cluster",
            )
        ]
    version = run_with_timeout(["sinfo", "--version"], 10).out.strip()
    inside = f", inside job {os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else ""
    rows = answer.out.strip().splitlines()
    return [
        ok("Slurm", f"{version}{inside}; {join_few(rows, SHOWN, '; ')}"),
        ok("srun --mpi", ", ".join(name for name in plugins if name != "none") or "no plugins"),
    ]
