"""Runs for tables: several at a time, each in a process of its own, of which the result file is
kept. A stopped run continues from its last checkpoint.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hpcfed.core.exit_status import DONE, RESUME_ME, as_shells_count
from hpcfed.engine.fault_tolerance.supervise import onward
from hpcfed.storage.record import Record

RESULTS = Path(
    os.path.relpath(Path(__file__).parent / "results")
)  # relative: result files record it
FOLDER = Path("build/benchmarks")  # of runs that are not done, with their checkpoints


class Run(NamedTuple):
    """One run: a job file, flags over it, and the result file that it makes.

    Python files beside the job file can be named in it.
    """

    job: Path
    flags: tuple[str, ...]
    kept: Path


class Processes:
    """The runs in hand. SIGTERM and SIGINT are handed on to them, and no other is started.

    hpcfed saves and ends with status 75 on the first of these signals; each run has a process group
    of its own, so that Ctrl-C in a terminal reaches it once.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a handler may run while this thread holds it
        self.running: list[subprocess.Popen[str]] = []
        self.stopping = False

    def run(self, words: list[str], env: dict[str, str]) -> tuple[int, str]:
        """Run this to its end; returns exit status and standard error."""
        with self.lock:
            if self.stopping:
                return RESUME_ME, ""
            process = subprocess.Popen(
                words,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
                process_group=0,
            )
            self.running.append(process)
            if self.stopping:  # this thread's handler ran while it held the lock
                process.send_signal(signal.SIGTERM)
        error = process.communicate()[1]
        with self.lock:
            self.running.remove(process)
        return as_shells_count(process.returncode), error

    def stop(self, *_: object) -> None:
        """The signals' handler."""
        with self.lock:
            if self.stopping:
                return
            self.stopping = True
            for process in self.running:
                process.send_signal(signal.SIGTERM)

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        before = {s: signal.signal(s, self.stop) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)


def run_all(runs: Iterable[Run], side_by_side: int, folder: Path = FOLDER) -> None:
    """Do all runs without a result file, in this order, this number at a time, each on one
    core.

    folder: where each run has a folder with its checkpoints until it is done, so that the same call
    continues where the last one was killed, with the same bits.
    One that fails does not keep the others from running; SystemExit at the end names them. On
    SIGTERM or SIGINT all runs save, and this process ends with status 75.
    """
    processes = Processes()
    with processes.handle_signals(), ThreadPoolExecutor(side_by_side) as pool:
        codes = list(pool.map(lambda it: run(it, folder, processes), runs))
    if processes.stopping:
        print("stopped by a signal; the same command continues", file=sys.stderr)
        sys.exit(RESUME_ME)
    if failed := [error for error in codes if error]:
        sys.exit("\n".join(failed))


def run(it: Run, folder: Path, processes: Processes) -> str | None:
    """One run; only its result file is kept. Returns what it said where it failed."""
    if it.kept.exists():
        return None
    out = folder / os.path.relpath(it.kept.with_suffix(""), RESULTS)
    words = [sys.executable, "-m", "hpcfed.main", str(it.job), *it.flags, "--out", str(out)]
    path = [str(it.job.resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    status, error = processes.run([*words, "--quiet", *onward(out)], env)
    if status != DONE:
        if processes.stopping:
            return None
        return f"{it.kept.stem}, status {status}: {' '.join(it.flags)}: {error}"
    keep(out / "results.h5", it.kept)
    shutil.rmtree(out)
    return None


def keep(results: Path, path: Path) -> None:
    """Copy a finished run's result file; it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    shutil.copyfile(results, part)
    os.replace(part, path)


def short_commit(record: Record) -> str:
    """The commit of hpcfed that made a record; it ends in "+" if files differ."""
    commit = record.header["commit"]
    return commit[:8] + "+" * commit.endswith("+")


def slug(name: str) -> str:
    """A name as a file name."""
    kept = "".join(c if c.isalnum() else "-" for c in name.lower())
    return "-".join(part for part in kept.split("-") if part)
