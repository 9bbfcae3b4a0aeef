"""`python fatal.py [JOB.toml ...] [--field value ...]` is hpcfed.main in which ranks kill
themselves at given moments.

FATAL="2:train:3 0+1:collective:5" kills rank 2 in round 3 while a client trains, ranks 0 and 1 in
round 5 where the ranks meet. Ranks are numbered as the launcher did; rounds count from 1.
FATAL_BY="SIGSTOP" stops them instead.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    gc.disable()  # as `python -m hpcfed.main` begins

from hpcfed.comm.mpi import Mpi
from hpcfed.engine import loop, run
from hpcfed.engine.evaluation import Evaluation
from hpcfed.engine.fault_tolerance import recover
from hpcfed.engine.fault_tolerance.background_save import BackgroundSave
from hpcfed.engine.fault_tolerance.buddy_copy import BuddyCopy
from hpcfed.engine.round_record import Recorder
from hpcfed.engine.rounds import Rounds
from hpcfed.federation.tallies import Tallies
from hpcfed.main import main
from hpcfed.storage import checkpoint, checkpoint_parts
from hpcfed.storage.results import Results

ME = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
BY = signal.Signals[os.environ.get("FATAL_BY", "SIGKILL")]
WHERE: dict[str, tuple[Any, str]] = {
    "enter": (recover.Course, "enter"),
    "setup": (run, "world"),
    "train": (Tallies, "add_training"),
    "collective": (Mpi, "sum"),
    "merge": (Mpi, "bcast"),
    "send": (Mpi, "move"),
    "evaluate": (Evaluation, "_score"),
    "record": (Recorder, "gather"),
    "results": (Results, "write"),
    "copy": (BuddyCopy, "make_copy"),
    "save": (BackgroundSave, "start"),
    "part": (checkpoint_parts, "write_part"),
    "index": (checkpoint_parts, "write_index"),
    "recover": (recover.Course, "restore"),
    "finish": (loop.Loop, "conclude"),
}
STATE = {"round": 0}  # that is going on, from 1


def moments() -> dict[str, set[int]]:
    """The rounds in which this rank dies, by place; 0 where the round does not matter."""
    mine: dict[str, set[int]] = {}
    for fault in os.environ.get("FATAL", "").split():
        ranks, place, t = fault.split(":")
        if str(ME) in ranks.split("+"):
            mine.setdefault(place, set()).add(int(t))
    return mine


def deadly(work: Callable, when: set[int]) -> Callable:
    def wrapped(*args, **kwargs):
        saved = next((saved_round(what) for what in args if isinstance(what, Path)), None)
        if (STATE["round"] if saved is None else saved) in when:
            os.kill(os.getpid(), BY)
        return work(*args, **kwargs)

    return wrapped


def saved_round(parts: Path) -> int | None:
    """The round of a checkpoint, which is written in the background; None for another folder."""
    match = checkpoint.PARTS.fullmatch(parts.name)
    return int(parts.name.split("-")[1]) if match else None


def noting(step: Callable) -> Callable:
    """A round, of which STATE knows the number."""

    def wrapped(rounds, *args):
        STATE["round"] = rounds.t + 1
        return step(rounds, *args)

    return wrapped


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    Rounds.step = noting(Rounds.step)
    for place, when in moments().items():
        owner, name = WHERE[place]
        setattr(owner, name, deadly(getattr(owner, name), when))
    sys.exit(main())
