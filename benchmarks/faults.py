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
from time import sleep

from disks import fill
from numpy.random import Generator
from watched import Watched

from hpcfed.status import DONE, FAULT, HUNG, RESUME_ME
from hpcfed.storage import checkpoint, names

ROUNDS, EVERY = 30, 3  # of a run, and between its checkpoints
KILLED = -signal.SIGKILL  # the launcher itself
TWO_SAVED = 10  # rounds after which two checkpoints exist
FULL_FOR = 1.5  # seconds at most that a disk is full for a while
Strike = Callable[
    [Watched, Path, Generator], None
]  # the run, its folder, and what the strike draws from


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    statuses: with which the start that it strikes may end.  rounds: first and last after which it
    strikes; 0: while the run starts.  after: what is done to the run folder when that start has
    ended.  fewest: ranks.
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


def flipped(files: Callable[[Path], list[Path]], run: Path, draw: Generator) -> None:
    """Change one bit of one of these files."""
    path = chosen(files(run), draw)
    content = bytearray(path.read_bytes())
    content[int(draw.integers(len(content)))] ^= 1 << int(draw.integers(8))
    path.write_bytes(content)


def truncated(files: Callable[[Path], list[Path]], run: Path, draw: Generator) -> None:
    """Cut one of these files short."""
    path = chosen(files(run), draw)
    os.truncate(path, int(draw.integers(path.stat().st_size)))


def removed(files: Callable[[Path], list[Path]], run: Path, draw: Generator) -> None:
    chosen(files(run), draw).unlink()


def damaged(files: Callable[[Path], list[Path]], run: Path, draw: Generator) -> None:
    """Change, cut or remove one of these files."""
    (flipped, truncated, removed)[int(draw.integers(3))](files, run, draw)


def newest(run: Path) -> list[Path]:
    """The files of the newest checkpoint: index and parts."""
    index = checkpoint.newest(run)
    folders = [folder for folder in sorted(parts(run)) if names.index_of(folder) == index]
    return [index, *(part for folder in folders for part in sorted(folder.glob("rank-*.h5")))]


def written(run: Path) -> list[Path]:
    """The files of the results."""
    results = names.results_file(run)
    return [path for path in (results, names.journal_file(results)) if path.exists()]


def chosen(files: list[Path], draw: Generator) -> Path:
    return files[int(draw.integers(len(files)))]


def parts(run: Path) -> set[Path]:
    """The folders of parts of a run's checkpoints."""
    return {path for path in names.checkpoint_folder(run).glob("round-*") if path.is_dir()}


def filler(run: Path) -> Path:
    return run.with_name("filler")


def send(process: int, number: int) -> None:
    os.kill(process, number)


KILL, TERM, USR1, STOP = signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGSTOP
MIRROR, WATCHDOG = "--checkpoint.mirror", "--run.watchdog 10"
SAVED = (TWO_SAVED, ROUNDS - 1)
BEFORE_THE_LAST = (1, ROUNDS - EVERY - 1)  # another checkpoint is still to come
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
        "a full disk to the end, then room and --resume", full, (RESUME_ME,), disk=True, after=room
    ),
    "disk-full-a-while": Fault(
        "a full disk for a while", full_for_a_while, (DONE,), disk=True, rounds=(1, ROUNDS // 2)
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
        after=partial(damaged, written),
    ),
}
