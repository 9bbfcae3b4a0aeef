"""`hpcfed supervise -- mpirun -np 4 python -m hpcfed.main JOB.toml`: a run that is started again
when it is cut short.

For machines without a batch system that does it. A run has ended for good with status 0, done, and
2, a mistake in job, data or files. All other ends are of the machine or by chance: 75, mpirun's 128
+ signal after a rank was killed, what launchers return where a node is gone, even a bug. They end
here too when a restart gains no round. With ULFM, Open MPI's mpirun returns 0 even where all ranks
were killed: done is a run whose last round is saved. A batch script names with `--job`, before the
`--`, the batch jobs that work on this run one after the other: what one of them has begun is gone
on with in any case, and what lay there before them is dealt with as the job says.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcfed.config.load import load
from hpcfed.core.errors import CheckpointError, ConfigError, format_error
from hpcfed.core.status import DONE, RESUME_ME, WRONG, as_shells_count
from hpcfed.engine import folder
from hpcfed.engine.fault_tolerance.signals import handle_signals
from hpcfed.storage import checkpoint, names
from hpcfed.storage.parts import adopt_all
from hpcfed.storage.record import FINISHED, JOB_ID, recover, stamp
from hpcfed.storage.record import load as load_results

MAIN = "hpcfed.main"
GAVE_UP = 1


def supervise(words: Sequence[str], job_ids: Sequence[str] | None = None) -> int:
    """Run this command, again with --resume as long as that helps; returns the exit status.

    words: the command, the launcher first; no shell reads it. A run folder that holds a checkpoint
    is gone on with, unless the job says overwrite or what to resume; a run that one of the batch
    jobs `job_ids` has begun, whatever it says. Nothing is started for a run that is finished.
    Raises ConfigError for a command that does not start a run.
    """
    if MAIN not in words:
        raise ConfigError(
            f"supervise: the command does not start {MAIN}; give all of it, as in\n"
            f"  hpcfed supervise -- mpirun -np 4 python -m {MAIN} JOB.toml --rounds 100"
        )
    job = load(words[list(words).index(MAIN) + 1 :], folder.read_job)
    run, gained, process = folder.of(job), -1, Process()
    old, ours = stamp(run), was_started_by(job_ids or (), run)
    if (ours or not job.overwrite) and is_finished(run, job.rounds):
        say(f"{run}: all {job.rounds} rounds are done")
        return DONE
    told = job.overwrite or job.resume  # with what to begin
    more = onward(run) if ours or (checkpoint_rounds(run) and not told) else []
    for restarts in range(job.run.max_restarts + 1):
        # what this process started has ended, and so have the batch jobs before this one
        over = ["--force"] if restarts or ours else []
        status = process.run([*words, *over, *more])
        ours = ours or (
            stamp(run) != old and names.results_file(run).is_file()
        )  # else it has written nothing
        rounds = checkpoint_rounds(run) if ours or not told else 0
        if status == DONE and rounds < job.rounds and not job.dry_run:
            status = (
                RESUME_ME  # Open MPI's mpirun returns 0 too where it has lost its daemon on a node
            )
        elif status != WRONG and ours and is_finished(run, job.rounds):
            status = (
                DONE  # a signal may come when all is done, and end processes that are about to end
            )
        if status in (DONE, WRONG) or job.run.on_fault == "stop" or process.asked:
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


def checkpoint_rounds(run: Path) -> int:
    """Rounds of the newest checkpoint, one of which only the index was not written included.

    0 if there is none.
    """
    adopt_all(run)
    newest = checkpoint.newest(run)
    return checkpoint.rounds_of(newest) if newest else 0


def is_finished(run: Path, rounds: int) -> bool:
    """Whether so many rounds are done, and what follows the last."""
    try:
        record = load_results(run)
    except CheckpointError:
        return False
    return record.header.get("ended") == FINISHED and record.rounds >= rounds


def was_started_by(job_ids: Sequence[str], run: Path) -> bool:
    """Whether one of these batch jobs has written to the run: its results name all that did, a
    checkpoint the last.
    """
    try:
        header = recover(run).header
    except CheckpointError:
        header = checkpoint.newest_header(run)
    return any(start.get(JOB_ID) in job_ids for start in (*header.get("history", []), header))


def onward(run: Path) -> list[str]:
    """The flags, after all others, with which a run of ours goes on.

    One that had saved nothing begins anew.
    """
    if checkpoint_rounds(run):
        return ["--resume", str(run)]
    return ["--overwrite"] if names.results_file(run).is_file() else []


def give_up(status: int, why: str) -> int:
    say(f"ended with status {status}, and is not started again: {why}")
    return GAVE_UP


def say(text: str) -> None:
    print(format_error(f"hpcfed supervise: {text}"), file=sys.stderr, flush=True)


class Process:
    """The process that is watched, one after the other.

    Who asks this one to stop asks that one to save and stop.

    It is asked by SIGUSR1: mpirun hands that on to the ranks, while on SIGTERM it ends them at
    once. It has a process group of its own, so that Ctrl-C in a terminal does not. Who asks twice
    is in a hurry: that signal goes as it is.
    """

    def __init__(self) -> None:
        self.asked = False
        self.child: subprocess.Popen[bytes] | None = None

    def run(self, words: Sequence[str]) -> int:
        """The exit status of a command, as shells count."""
        try:
            with (
                handle_signals(self.ask),
                subprocess.Popen(words, stdin=subprocess.DEVNULL, process_group=0) as self.child,
            ):
                if self.asked:  # before there was a child to be told
                    self.child.send_signal(signal.SIGUSR1)
                return as_shells_count(self.child.wait())
        except OSError as error:
            raise ConfigError(f"supervise: cannot start {words[0]}: {error.strerror}") from error

    def ask(self, number: int, _: object) -> None:
        if self.child:
            self.child.send_signal(number if self.asked else signal.SIGUSR1)
        self.asked = True
