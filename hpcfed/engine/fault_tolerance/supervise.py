"""`hpcfed supervise -- mpirun -np 4 python -m hpcfed.main JOB.toml`: restarts an interrupted run.

It is for machines without a batch system that restarts jobs. A run has ended for good with status
0, done, and 2, a mistake in job, data or files. All other statuses come from the machine or from
chance: 75, mpirun's 128 + signal after a rank was killed, the launcher's own if a node is gone,
even a bug. Restarts stop when one completes no further round. With ULFM, Open MPI's mpirun returns
0 even if all ranks were killed, so a run counts as done only if its results say that it is
finished.

A batch script gives `--job`, before the `--`, the ids of the batch jobs that work on this run one
after the other. A run that one of them has started is always continued; an older run in the folder
is treated as the job file says.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcfed.config.load import load_without_method
from hpcfed.config.words import CommandLine
from hpcfed.core.errors import CheckpointError, ConfigError, format_error
from hpcfed.core.exit_status import DONE, RESUME_ME, WRONG, as_shells_count
from hpcfed.engine import folder
from hpcfed.engine.fault_tolerance.signals import handle_signals
from hpcfed.storage import checkpoint, names
from hpcfed.storage.checkpoint import saved_rounds
from hpcfed.storage.record import JOB_ID, has_finished, recover, stamp
from hpcfed.storage.record import load as load_results

MAIN = "hpcfed.main"
GAVE_UP = 1


def supervise(words: Sequence[str], job_ids: Sequence[str] | None = None) -> int:
    """Run this command, again with --resume as long as that helps; return the exit status.

    words: the command, the launcher first; no shell reads it.
    job_ids: batch jobs whose run is continued in any case.
    A run folder with a checkpoint is continued unless the job sets overwrite or resume. A finished
    run is not started. Raises ConfigError for a command that does not start a run.
    """
    if MAIN not in words:
        raise ConfigError(
            f"supervise: the command does not start {MAIN}; give all of it, as in\n"
            f"  hpcfed supervise -- mpirun -np 4 python -m {MAIN} JOB.toml --rounds 100"
        )
    flags = CommandLine.parse(words[list(words).index(MAIN) + 1 :])
    job = load_without_method(flags, folder.read_job)  # this process waits, and needs no torch
    run, gained, process = folder.of(job), -1, Process()
    old, ours = stamp(run), was_started_by(job_ids or (), run)
    if (ours or not job.overwrite) and is_finished(run, job.rounds):
        say(f"{run}: all its rounds are done")
        return DONE
    explicit = job.overwrite or job.resume  # how to begin
    more = onward(run) if ours or (checkpoint.newest(run) and not explicit) else []
    for restarts in range(job.run.max_restarts + 1):
        # what this process started has ended, and so have the batch jobs before this one
        over = ["--force"] if restarts or ours else []
        over += ["--no-overwrite"] if "overwrite" in flags.flags and "--resume" in more else []
        with process.started([*words, *over, *more], "supervise") as child:
            status = as_shells_count(child.wait())
        # it has written results
        ours = ours or (stamp(run) != old and os.path.isfile(names.results_file(run)))
        rounds = saved_rounds(run) if ours or not explicit else 0
        finished = (ours or not job.overwrite) and is_finished(run, job.rounds)
        if status == DONE and not finished and not job.dry_run:
            status = (
                RESUME_ME  # Open MPI's mpirun returns 0 too where it has lost its daemon on a node
            )
        elif status != WRONG and finished:
            status = (
                DONE  # a signal may come when all is done, and end processes that are about to end
            )
        if status in (DONE, WRONG) or job.run.on_fault == "stop" or process.got:
            return status
        if rounds <= gained:
            return give_up(
                status, f"no round was gained since the last start: {gained} saved, as before"
            )
        gained, more = rounds, onward(run) if ours else more
        if restarts < job.run.max_restarts:
            say(
                f"ended with status {status}, {gained} rounds are saved; restart {restarts + 1}: "
                f"{' '.join(more)}"
            )
    return give_up(status, f"run.max_restarts = {job.run.max_restarts}")


def is_finished(run: Path, rounds: int) -> bool:
    """Return whether the run has done these rounds, or ended early, and its final steps."""
    try:
        return has_finished(load_results(run), rounds)
    except CheckpointError:
        return False


def was_started_by(job_ids: Sequence[str], run: Path) -> bool:
    """Return whether one of these batch jobs has written to the run.

    Results name all batch jobs that wrote to them, a checkpoint only the last one.
    """
    try:
        header = recover(run).header
    except CheckpointError:
        header = checkpoint.newest_header(run)
    return any(start.get(JOB_ID) in job_ids for start in (*header.get("history", []), header))


def onward(run: Path) -> list[str]:
    """Return the flags, to follow all others, with which our run is continued.

    A run that has saved nothing starts from the beginning; a checkpoint after round 0 holds work
    of the first round.
    """
    if checkpoint.newest(run):
        return ["--resume", str(run)]
    return ["--overwrite"] if os.path.isfile(names.results_file(run)) else []


def give_up(status: int, why: str) -> int:
    say(f"ended with status {status}, and is not started again: {why}")
    return GAVE_UP


def say(text: str) -> None:
    print(format_error(f"hpcfed supervise: {text}"), file=sys.stderr, flush=True)


class Process:
    """A launcher and its ranks, with requests to stop passed on to them; a restart replaces it.

    The first signal is passed on as SIGUSR1, which asks the run to save and stop: mpirun hands
    SIGUSR1 on to the ranks, whereas on SIGTERM it ends them at once. The child has a process group
    of its own, so Ctrl-C in a terminal does not reach it. A second signal is passed on unchanged,
    to stop it at once.
    got: the first signal received, or None.
    """

    def __init__(self) -> None:
        self.got: int | None = None
        self.child: subprocess.Popen[bytes] | None = None

    @contextmanager
    def started(
        self, words: Sequence[str], who: str, **options: Any
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Yield the process of a command; it has ended when the block ends.

        who: opens messages.  options: of Popen. Raises ConfigError if it cannot be started.
        """
        with handle_signals(self.ask):
            try:
                self.child = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, process_group=0, **options
                )
            except OSError as error:
                raise ConfigError(f"{who}: cannot start {words[0]}: {error.strerror}") from error
            if self.got:  # before there was a child to signal
                self.child.send_signal(signal.SIGUSR1)
            try:
                yield self.child
            finally:
                if self.child.poll() is None:
                    self.child.terminate()
                    self.child.wait()

    def ask(self, number: int, _: object) -> None:
        if self.child:
            self.child.send_signal(number if self.got else signal.SIGUSR1)
        self.got = self.got or number
