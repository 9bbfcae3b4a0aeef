"""`mpirun -np 15 python -m hpcfed.main [JOB.toml ...] [--field value ...]`: one run.

`--help` in place of a run: `hpcfed.config.help`.

Exit statuses are those of `hpcfed.core.exit_status`. Without ULFM a rank's death ends the launcher
itself, with a status of its own: mpirun's is 128 + the signal, 137 after SIGKILL.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if __name__ == "__main__":  # a program, in which nothing that is imported is garbage: not to look
    gc.disable()  # until `program` has started; saves 0.4 s per rank
    from hpcfed.config.load import exit_if_wrong

    exit_if_wrong(sys.argv[1:])

from hpcfed.comm import Comm, connect, ulfm
from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.comm.connect import other_process_reports
from hpcfed.config import help
from hpcfed.config.layers import PREFIX, environment
from hpcfed.config.load import load
from hpcfed.config.sections import Run
from hpcfed.config.words import CommandLine
from hpcfed.core import user_code
from hpcfed.core.errors import HpcfedError, RankLost, escape_unprintable, format_error, plain
from hpcfed.core.exit_status import DONE, FAULT, RESUME_ME, WRONG
from hpcfed.engine.fault_tolerance import signals
from hpcfed.engine.fault_tolerance.watchdog import Guard
from hpcfed.engine.folder import read_job
from hpcfed.engine.run import run
from hpcfed.machine.error_messages import ADVICE, out_of_memory
from hpcfed.storage.fields import at

if TYPE_CHECKING:
    from hpcfed.config.job import Job

EARLY = "hpcfed: a rank died before the run started; start it again"
# seconds; launchers pass on what ranks print a little later, and drop the rest when a rank aborts
GRACE = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job of a command line on all ranks; returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    escape_unprintable()
    seconds = patience(words)
    try:
        comm = connect(seconds)
    except HpcfedError as error:
        if not (error.everywhere and other_process_reports(os.environ)):
            print(f"hpcfed: {format_error(error)}", file=sys.stderr)
        return WRONG
    except RankLost:
        print(EARLY, file=sys.stderr)
        depart(RESUME_ME)
    if comm.rank:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  rank 0 speaks for all
    guard = Guard(comm.rank, comm.size, seconds)
    guard.begin("at the start")
    return run_or_abort(comm, words, guard)


def patience(words: Sequence[str]) -> float:
    """Seconds that ranks wait for one another at the start: run.watchdog, of which flags and
    environment are known.
    """
    try:
        layers = CommandLine.parse(words).layer(), environment(os.environ)
        values = (at(layer.values, "run.watchdog") for layer in layers)
        seconds = float(str(next(filter(None, values), Run().watchdog)))
    except (ValueError, HpcfedError):
        return 0  # `load` will refuse it
    return seconds if 0 <= seconds < 1e8 else 0


def run_or_abort(comm: Comm, words: Sequence[str], guard: Guard) -> int:
    """Do what the words ask for, and return the exit status.

    An error that all ranks have ends them in order; one of a single rank ends all ranks at once.
    """
    try:
        share_environment(comm)
        wanted = on_all_ranks(comm, lambda: job_or_help(words))
        if isinstance(wanted, str):
            print(plain(wanted))
            status = DONE
        else:
            status = run(wanted, comm, guard)
    except HpcfedError as error:
        status = RESUME_ME if error.again else WRONG
        if not error.everywhere:
            leave(comm, f"hpcfed: {format_error(add_rank(comm, error))}", status)
        if comm.rank == 0:
            print(f"hpcfed: {format_error(error)}", file=sys.stderr)
    except RankLost:
        leave(comm, EARLY, RESUME_ME)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if out_of_memory(error):
            leave(
                comm,
                f"hpcfed: "
                f"{format_error(add_rank(comm, MemoryError(f'out of memory: {error}; {ADVICE}')))}",
                WRONG,
            )
        if theirs := user_code.explain_error(error):
            leave(comm, f"hpcfed: {format_error(add_rank(comm, theirs))}", WRONG)
        if not isinstance(error, Exception):
            raise
        leave(comm, f"rank {comm.rank} of {comm.size}: {traceback.format_exc()}", FAULT)
    guard.begin("at the end")
    with suppress(RankLost):  # all is done
        comm.close()
    guard.stop()
    if comm.lost or ulfm.available():
        depart(status)
    return status


def job_or_help(words: Sequence[str]) -> Job | str:
    """Return the job of a command line, or the help that it asks for."""
    line = CommandLine.parse(words)
    return load(line, read_job) if line.topics is None else help.help(line, read_job)


def depart(status: int) -> NoReturn:
    """End this process, without MPI's own end, which may wait for the dead, also for one that dies
    just now.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def share_environment(comm: Comm) -> None:
    """Rank 0's HPCFED_ variables for all ranks: launchers hand them to the processes of one node
    alone.
    """
    ours = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    theirs = comm.bcast(ours)
    for name in ours.keys() - theirs.keys():
        del os.environ[name]
    os.environ.update(theirs)


def add_rank(comm: Comm, error: Exception | str) -> str:
    """Return the message of an error of a single rank, with the rank."""
    text = str(error)
    return (
        text
        if comm.size == 1 or text.startswith("rank ")
        else f"rank {comm.rank} of {comm.size}: {text}"
    )


def leave(comm: Comm, message: str, status: int) -> None:
    """Print a message, and end all ranks, because the others may be waiting for this one."""
    print(plain(message), file=sys.stderr, flush=True)
    if comm.size > 1:
        time.sleep(GRACE)
    comm.abort(status)


def program(words: Sequence[str] | None = None) -> int:
    """Do one run as a program of its own, and return the exit status.

    `python -m hpcfed.main` and `hpcfed run` do that.
    """
    # what is imported lasts: not to look at it again saves 0.3 s a rank, most of it at the end
    gc.freeze()
    gc.enable()
    with signals.of_program():
        return main(words)


if __name__ == "__main__":
    sys.exit(program())
