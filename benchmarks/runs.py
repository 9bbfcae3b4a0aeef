"""Runs for tables: several at a time, each in a process of its own, of which the result file is
kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(
    os.path.relpath(Path(__file__).parent / "results")
)  # relative: result files record it


class Run(NamedTuple):
    """One run: a job file, flags over it, and the result file that it makes."""

    job: Path
    flags: tuple[str, ...]
    kept: Path


def run_all(runs: Iterable[Run], side_by_side: int) -> None:
    """Do all runs whose result file is not there yet, so many at a time, each on one core.

    One that fails does not keep the others from running; SystemExit at the end names them.
    """
    with ThreadPoolExecutor(side_by_side) as pool:
        failed = [error for error in pool.map(run, runs) if error]
    if failed:
        sys.exit("\n".join(failed))


def run(it: Run) -> str | None:
    """One run; only its result file is kept. Returns what it said where it failed."""
    if it.kept.exists():
        return None
    it.kept.parent.mkdir(parents=True, exist_ok=True)
    out = it.kept.with_suffix("")
    command = [sys.executable, "-m", "hpcfed.main", str(it.job), *it.flags, "--out", str(out)]
    done = subprocess.run(
        [*command, "--overwrite", "--quiet"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        return f"{' '.join(it.flags)}: {done.stderr}"
    shutil.move(out / "results.h5", it.kept)
    shutil.rmtree(out)
    return None


def slug(name: str) -> str:
    """A name as a file name."""
    kept = "".join(c if c.isalnum() else "-" for c in name.lower())
    return "-".join(part for part in kept.split("-") if part)
