"""`python fatal.py [JOB.toml] [--field value ...]` is hpcfed.main in which ranks kill themselves at given moments.

FATAL="2:train:3 0+1:collective:5" kills rank 2 in round 3 while a client trains, ranks 0 and 1 in round 5 where the
ranks meet. Ranks are numbered as the launcher did; rounds count from 1.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from hpcfed.comm.mpi import Mpi
from hpcfed.engine import recover, run, saving
from hpcfed.engine.mirror import Mirror
from hpcfed.engine.rounds import Rounds
from hpcfed.federation import Federation
from hpcfed.main import main
from hpcfed.storage.results import Results
from hpcfed.store import ClientStore

ME = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
WHERE: dict[str, tuple[Any, str]] = {
    "setup": (run, "world"),
    "train": (Federation, "note"),
    "collective": (Mpi, "sum"),
    "merge": (Mpi, "bcast"),
    "send": (Mpi, "move"),
    "evaluate": (Rounds, "score"),
    "record": (Rounds, "record"),
    "results": (Results, "write"),
    "copy": (Mirror, "copied"),
    "save": (ClientStore, "parcel"),
    "recover": (recover.Course, "restore"),
    "finish": (run.Loop, "conclude"),
}
STATE = {"round": 0, "saving": False}  # the round that is going on, from 1; whether a checkpoint is being written


def moments() -> dict[str, set[int]]:
    """The rounds in which this rank dies, by place; 0 where the round does not matter."""
    mine: dict[str, set[int]] = {}
    for fault in os.environ.get("FATAL", "").split():
        ranks, place, t = fault.split(":")
        if str(ME) in ranks.split("+"):
            mine.setdefault(place, set()).add(int(t))
    return mine


def deadly(work: Callable, place: str, when: set[int]) -> Callable:
    def wrapped(*args, **kwargs):
        due = STATE["round"] in when and (place != "save" or STATE["saving"])
        if due:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*args, **kwargs)

    return wrapped


def noting(work: Callable, name: str, value: Callable[[Any], Any], after: Any = None) -> Callable:
    """work, during which STATE[name] is value(its first argument); afterwards `after`, if given."""

    def wrapped(first, *args, **kwargs):
        STATE[name] = value(first)
        try:
            return work(first, *args, **kwargs)
        finally:
            STATE[name] = STATE[name] if after is None else after

    return wrapped


if __name__ == "__main__":
    Rounds.step = noting(Rounds.step, "round", lambda rounds: rounds.t + 1)
    saving.save = noting(saving.save, "saving", lambda rounds: True, after=False)
    for place, when in moments().items():
        owner, name = WHERE[place]
        setattr(owner, name, deadly(getattr(owner, name), place, when))
    sys.exit(main())
