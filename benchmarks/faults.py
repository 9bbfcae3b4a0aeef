"""What strikes a run in `chaos.py`: what is done to its processes, disk and files, and how it
should end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import h5py
from calls import KINDS, Calls
from disks import fill
from numpy.random import Generator
from watched import Watched

from hpcfed.core.exit_status import DONE, FAULT, HUNG, RESUME_ME, WRONG
from hpcfed.storage import checkpoint, names

ROUNDS, EVERY = 8, 2  # of a run, and between its checkpoints
KILLED = -signal.SIGKILL  # the launcher itself
TWO_SAVED = 7  # rounds after which two checkpoints exist
OPEN_FOR = 0.05  # seconds at most that another program has a file open
FULL_FOR = 1.5  # seconds at most that a disk is full for a while
Strike = Callable[
    [Watched, Path, Generator], None
]  # the run, its folder, and what the strike draws from


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    statuses: with which the start that it strikes may end.  rounds: first and last after which it
    strikes; 0: while the run starts.  after: what is done to the run folder when that start has
    ended.  fewest: ranks.  calls: of files, one of which fails on a rank of the start.
    """

    what: str
    strike: Strike
    statuses: tuple[int, ...]
    flags: str = ""
    ulfm: bool = False
    supervised: bool = False
    disk: bool = False
    rounds: tuple[int, int] = (1, ROUNDS - 1)
    after: Callable[[Path, Generator], None] | None = None
    fewest: int = 2
    calls: Calls | None = None


def nothing(job: Watched, run: Path, draw: Generator) -> None:
    """What strikes is in the run from its start."""


def ranks(number: int, many: int, job: Watched, run: Path, draw: Generator) -> None:
    """Send a signal to so many random ranks."""
    there = job.ranks()
    for rank in draw.permutation(list(there))[:many]:
        send(there[int(rank)], number)


def first_rank(number: int, job: Watched, run: Path, draw: Generator) -> None:
    send(job.ranks()[0], number)


def leader(number: int, job: Watched, run: Path, draw: Generator) -> None:
    """Send a signal to mpirun, or to hpcfed supervise where that started it."""
    send(job.process.pid, number)


def node(job: Watched, run: Path, draw: Generator) -> None:
    """Kill all processes."""
    job.kill()


def saving(strike: Strike, job: Watched, run: Path, draw: Generator) -> None:
    """Strike when the next checkpoint is being written: its folder has appeared, or a moment after
    that.
    """
    before = parts(run)
    job.until(lambda: parts(run) - before, "checkpoint")
    sleep(draw.uniform(0, 0.03))
    strike(job, run, draw)


def full(job: Watched, run: Path, draw: Generator) -> None:
    """Take all the room that is left on the disk of the run folder."""
    fill(filler(run))


def full_for_a_while(job: Watched, run: Path, draw: Generator) -> None:
    full(job, run, draw)
    sleep(draw.uniform(0, FULL_FOR))
    room(run, draw)


def room(run: Path, draw: Generator) -> None:
    """Take no more room."""
    filler(run).unlink()


def flip(path: Path, draw: Generator) -> None:
    """Change one bit in place; now and then the time of the last change stays, as when a disk does
    it.
    """
    found = os.stat(path)
    with open(path, "r+b") as file:
        position = int(draw.integers(found.st_size))
        file.seek(position)
        old = file.read(1)[0]
        file.seek(position)
        file.write(bytes([old ^ 1 << int(draw.integers(8))]))
    if draw.integers(2):
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def flipped(files: Callable[[Path], list[Path]], run: Path, draw: Generator) -> None:
    """Change one bit of one of these files."""
    flip(chosen(files(run), draw), draw)


def truncated(files: Callable[[Path], list[Path]], run: Path, draw: Generator) -> None:
    """Cut one of these files short."""
    path = chosen(files(run), draw)
    os.truncate(path, int(draw.integers(path.stat().st_size)))


def removed(files: Callable[[Path], list[Path]], run: Path, draw: Generator) -> None:
    chosen(files(run), draw).unlink()


def damaged(files: Callable[[Path], list[Path]], run: Path, draw: Generator) -> None:
    """Change, cut or remove one of these files."""
    (flipped, truncated, removed)[int(draw.integers(3))](files, run, draw)


def during(
    deed: Callable[[Callable[[Path], list[Path]], Path, Generator], None],
    files: Callable[[Path], list[Path]],
    job: Watched,
    run: Path,
    draw: Generator,
) -> None:
    """Do it to one of these files while the run goes on, as soon as there is one."""

    def done() -> bool:
        if not files(run):
            return False
        try:
            deed(files, run, draw)
        except (FileNotFoundError, ValueError):  # replaced, or cut short to nothing, meanwhile
            return False
        return True

    job.until(done, "file to be struck")


def opened(files: Callable[[Path], list[Path]], run: Path, draw: Generator) -> None:
    """Write into one of these files as another program, through HDF5."""
    try:
        with h5py.File(chosen(files(run), draw), "r+", locking=False) as file:
            file["columns"].attrs["note"] = "x" * int(draw.integers(1, 5000))
            for column in file["columns/rounds"].values():
                column[...] = 0
            sleep(draw.uniform(0, OPEN_FOR))
    except (KeyError, OSError) as error:  # no round in it yet
        raise FileNotFoundError from error


def then_node(strike: Strike, job: Watched, run: Path, draw: Generator) -> None:
    """Strike, and kill all processes when two more checkpoints exist: then only they are there to
    go on from.
    """
    strike(job, run, draw)
    before = saved_rounds(run)
    job.until(lambda: saved_rounds(run) >= before + 2 * EVERY, "two checkpoints")
    job.kill()


def then_first_rank(strike: Strike, job: Watched, run: Path, draw: Generator) -> None:
    """Strike, and kill rank 0 a moment later: who follows it has nothing but the files."""
    strike(job, run, draw)
    sleep(draw.uniform(0, 0.05))
    if 0 in (there := job.ranks()):
        send(there[0], KILL)


def second_run(job: Watched, run: Path, draw: Generator) -> None:
    """Start the same command again, now and then with --overwrite: it is refused.

    All ranks are stopped meanwhile: the run would be over before the other one is up.
    """
    more = ["--overwrite"] if draw.integers(2) else []
    there = list(job.ranks().values())
    for process in there:
        send(process, STOP)
    begin = monotonic()
    with Watched([*job.process.args, *more], job.limit) as other:
        status = other.finish()
    job.deadline += monotonic() - begin
    for process in there:
        send(process, CONT)
    if status != WRONG or "Traceback" in other.said:
        job.complaints.append(f"second run {more} ended with status {status}\n{other.said}")


def two_at_once(job: Watched, run: Path, draw: Generator) -> None:
    """Start the same command again while the first one starts: one of the two is refused."""
    with Watched(job.process.args, job.limit) as other:
        status = other.finish()
    job.until(lambda: False, "end")
    if sorted([status, job.process.returncode]) != [DONE, WRONG] or "Traceback" in other.said:
        job.complaints.append(
            f"statuses {job.process.returncode} and, of the second run, {status}\n{other.said}"
        )


def saved_rounds(run: Path) -> int:
    """Rounds of the newest checkpoint that has an index."""
    index = checkpoint.newest(run)
    return checkpoint.rounds_of(index) if index else 0


def result_file(run: Path) -> list[Path]:
    return [path for path in [names.results_file(run)] if path.exists()]


def partition(run: Path) -> list[Path]:
    return [path for path in [names.partition_file(run)] if path.exists()]


def inner_parts(run: Path) -> list[Path]:
    """The parts of all checkpoints but that of the last round, which none follows."""
    return [
        part
        for folder in sorted(parts(run))
        if checkpoint.rounds_of(names.index_of(folder)) < ROUNDS
        for part in sorted(folder.glob("rank-*.h5"))
    ]


def newest(run: Path) -> list[Path]:
    """The files of the newest checkpoint: index and parts."""
    index = checkpoint.newest(run)
    folders = [folder for folder in sorted(parts(run)) if names.index_of(folder) == index]
    return [index, *(part for folder in folders for part in sorted(folder.glob("rank-*.h5")))]


def chosen(files: list[Path], draw: Generator) -> Path:
    return files[int(draw.integers(len(files)))]


def parts(run: Path) -> set[Path]:
    """The folders of parts of a run's checkpoints."""
    return {path for path in names.checkpoint_folder(run).glob("round-*") if path.is_dir()}


def filler(run: Path) -> Path:
    return run.with_name("filler")


def send(process: int, number: int) -> None:
    os.kill(process, number)


KILL, TERM, USR1 = signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1
STOP, CONT = signal.SIGSTOP, signal.SIGCONT
MIRROR, WATCHDOG = "--checkpoint.mirror", "--run.watchdog 10"
SAVED = (TWO_SAVED, ROUNDS - 1)
BEFORE_THE_LAST = (1, ROUNDS - EVERY - 1)  # another checkpoint is still to come
RUNNING = (1, ROUNDS // 2)  # the run is not at its end before the strike is
FAULTS = {
    "kill": Fault("SIGKILL of a rank", partial(ranks, KILL, 1), (DONE,), ulfm=True),
    "kill-mirror": Fault(
        "SIGKILL of a rank, checkpoint.mirror", partial(ranks, KILL, 1), (DONE,), MIRROR, ulfm=True
    ),
    "kill-first": Fault("SIGKILL of rank 0", partial(first_rank, KILL), (DONE,), ulfm=True),
    "kill-first-mirror": Fault(
        "SIGKILL of rank 0, checkpoint.mirror",
        partial(first_rank, KILL),
        (DONE,),
        MIRROR,
        ulfm=True,
    ),
    "kill-two": Fault(
        "SIGKILL of two ranks at once", partial(ranks, KILL, 2), (DONE,), ulfm=True, fewest=3
    ),
    "kill-two-mirror": Fault(
        "SIGKILL of two ranks at once, checkpoint.mirror",
        partial(ranks, KILL, 2),
        (DONE,),
        MIRROR,
        ulfm=True,
        fewest=3,
    ),
    "kill-saving": Fault(
        "SIGKILL of a rank while a checkpoint is written",
        partial(saving, partial(ranks, KILL, 1)),
        (DONE,),
        ulfm=True,
        rounds=BEFORE_THE_LAST,
    ),
    "kill-starting": Fault(
        "SIGKILL of a rank before the first round",
        partial(ranks, KILL, 1),
        (DONE, RESUME_ME, FAULT),
        "--run.watchdog 40",
        ulfm=True,
        rounds=(0, 0),
    ),
    "kill-supervised": Fault(
        "SIGKILL of a rank, no ULFM, hpcfed supervise",
        partial(ranks, KILL, 1),
        (DONE,),
        supervised=True,
    ),
    "kill-all": Fault(
        "SIGKILL of all ranks, ULFM, hpcfed supervise",
        partial(ranks, KILL, 5),
        (DONE,),
        ulfm=True,
        supervised=True,
    ),
    "node": Fault("SIGKILL of mpirun and all ranks, --resume", node, (KILLED,)),
    "node-saving": Fault(
        "the same while a checkpoint is written",
        partial(saving, node),
        (KILLED,),
        rounds=BEFORE_THE_LAST,
    ),
    "stop": Fault(
        "SIGSTOP of a rank, watchdog of 10 s, --resume", partial(ranks, STOP, 1), (HUNG,), WATCHDOG
    ),
    "stop-ulfm": Fault("the same with ULFM", partial(ranks, STOP, 1), (HUNG,), WATCHDOG, ulfm=True),
    "stop-supervised": Fault(
        "SIGSTOP of a rank, watchdog of 10 s, hpcfed supervise",
        partial(ranks, STOP, 1),
        (DONE,),
        WATCHDOG,
        supervised=True,
    ),
    "term-rank": Fault("SIGTERM to a rank, --resume", partial(ranks, TERM, 1), (RESUME_ME, DONE)),
    "usr1-ranks": Fault(
        "SIGUSR1 to all ranks, --resume", partial(ranks, USR1, 5), (RESUME_ME, DONE)
    ),
    "usr1-mpirun": Fault("SIGUSR1 to mpirun, --resume", partial(leader, USR1), (RESUME_ME, DONE)),
    "term-mpirun": Fault(
        "SIGTERM to mpirun, --resume", partial(leader, TERM), (FAULT, RESUME_ME, DONE)
    ),
    "term-supervise": Fault(
        "SIGTERM to hpcfed supervise, started again",
        partial(leader, TERM),
        (RESUME_ME, DONE),
        supervised=True,
    ),
    "disk-full": Fault(
        "a full disk to the end, then room and --resume",
        full,
        (RESUME_ME,),
        disk=True,
        rounds=(EVERY + 2, ROUNDS - 1),
        after=room,
    ),
    "disk-full-a-while": Fault(
        "a full disk for a while",
        full_for_a_while,
        (DONE, RESUME_ME),
        disk=True,
        rounds=(EVERY + 2, ROUNDS - 1),
    ),
    "flipped": Fault(
        "a flipped bit in the newest checkpoint, --resume",
        node,
        (KILLED,),
        rounds=SAVED,
        after=partial(flipped, newest),
    ),
    "truncated": Fault(
        "the newest checkpoint cut short, --resume",
        node,
        (KILLED,),
        rounds=SAVED,
        after=partial(truncated, newest),
    ),
    "results": Fault(
        "results changed, cut or removed, --resume",
        node,
        (KILLED,),
        rounds=SAVED,
        after=partial(damaged, result_file),
    ),
} | {
    name: Fault(what, strike, (DONE,), rounds=RUNNING)
    for name, what, strike in (
        (
            "flip-results",
            "a flipped bit in results.h5 during the run",
            partial(during, flipped, result_file),
        ),
        (
            "flip-partition",
            "a flipped bit in partition.h5 during the run",
            partial(during, flipped, partition),
        ),
        (
            "flip-part",
            "a flipped bit in a checkpoint's part during the run",
            partial(during, flipped, inner_parts),
        ),
        (
            "write-results",
            "another program writes into results.h5 during the run",
            partial(during, opened, result_file),
        ),
        (
            "damage-results",
            "results changed, cut or removed during the run",
            partial(during, damaged, result_file),
        ),
        ("second-run", "a second run in the same folder", second_run),
    )
}
FAULTS |= {
    f"{name}-node": Fault(
        f"{FAULTS[name].what}, all killed after two checkpoints, --resume",
        partial(then_node, FAULTS[name].strike),
        (KILLED, DONE),
        rounds=(1, ROUNDS - 3 * EVERY),
    )
    for name in ("flip-results", "flip-partition", "flip-part", "write-results")
}
FAULTS |= {
    "flip-results-mirror": Fault(
        "a flipped bit in results.h5, then SIGKILL of rank 0, checkpoint.mirror",
        partial(then_first_rank, FAULTS["flip-results"].strike),
        (DONE,),
        MIRROR,
        ulfm=True,
        rounds=RUNNING,
    ),
    "second-run-starting": Fault(
        "two runs that start in the same folder at once",
        two_at_once,
        (DONE, WRONG),
        rounds=(0, 0),
    ),
    "stop-starting": Fault(
        "SIGSTOP of a rank before the first round, watchdog of 10 s, --resume",
        partial(ranks, STOP, 1),
        (HUNG, FAULT),  # FAULT: before MPI is up, where no Python runs (comm/ulfm.py)
        WATCHDOG,
        rounds=(0, 0),
    ),
}
FAULTS |= {
    f"call-{name}": Fault(
        what, nothing, (DONE, RESUME_ME, WRONG), rounds=(0, 0), fewest=1, calls=calls
    )
    for name, (what, calls) in KINDS.items()
}
