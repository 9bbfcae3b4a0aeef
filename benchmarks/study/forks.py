"""Runs of hpcfed as forks of this process, so that imports and data are paid once.

A run of the study trains for some seconds; a start would add several: torch, hpcfed and reading
the data. Each fork is a process of its own, whose settings, memory and failures end with it, and
whose CPU seconds are counted exactly.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn, TypeVar

import hpcfed.engine.run  # noqa: F401
from hpcfed.config.load import load
from hpcfed.core.exit_status import FAULT, RESUME_ME, as_shells_count
from hpcfed.data import datasets
from hpcfed.main import main

T = TypeVar("T")
READ = cache(datasets.read)  # forks have the data sets that this process has read


def start(words: Sequence[str], folder: Path) -> int:
    """Start the run of a command line; returns its process.

    folder: of the run, without the results of another. Its messages go into a file beside it.
    """
    remove(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    read_data(tuple(words))
    gc.freeze()  # what is imported and read stays in pages that all forks share
    sys.stdout.flush()
    process = os.fork()
    if not process:
        run([*words, "--quiet", "--out", str(folder)], log_of(folder))
    return process


@cache
def read_data(words: tuple[str, ...]) -> None:
    """Read the data set of a job before the fork; errors are those of the run."""
    own, datasets.read = datasets.read, READ
    try:
        job = load(list(words), environ={})
        datasets.load_for(job, job.data.name)
    except Exception:
        return
    finally:
        datasets.read = own


def run(words: list[str], log: Path) -> NoReturn:
    """Run a job, and end this process with its exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    datasets.read = READ
    status = FAULT
    with open(log, "w") as file:
        sys.stdout = sys.stderr = file
        try:
            status = main(words)
        except BaseException:
            traceback.print_exc()
    os._exit(status)


def wait() -> tuple[int, int, float]:
    """Wait for the end of a run; returns its process, exit status and CPU seconds."""
    process, status, usage = os.wait4(-1, 0)
    return (
        process,
        as_shells_count(os.waitstatus_to_exitcode(status)),
        usage.ru_utime + usage.ru_stime,
    )


def stop_on_signals(running: Mapping[int, T], folder_of: Callable[[T], Path]) -> None:
    """Let SIGTERM and SIGINT end this process and its runs, which another call does again.

    running: the runs by process.
    """

    def stop(*_: object) -> None:
        for process in running:
            os.kill(process, signal.SIGKILL)
        for one in running.values():
            remove(folder_of(one))
        print("stopped by a signal; the same command continues", file=sys.stderr)
        os._exit(RESUME_ME)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def message(folder: Path) -> str:
    """What a run has said about its end: hpcfed's last message, or else the last line."""
    lines = log_of(folder).read_text(errors="replace").strip().splitlines()
    messages = [line for line in lines if line.startswith("hpcfed: ")]
    return (messages or lines or [""])[-1]


def diverged(message: str) -> bool:
    """Whether a run has ended because a loss, a weight or an upload was nan or infinite."""
    return any(
        words in message for words in ("the loss is nan", "the loss is inf", "nan or infinite")
    )


def remove(folder: Path) -> None:
    """Remove a run's folder and messages."""
    shutil.rmtree(folder, ignore_errors=True)
    log_of(folder).unlink(missing_ok=True)


def log_of(folder: Path) -> Path:
    return folder.with_suffix(".log")
