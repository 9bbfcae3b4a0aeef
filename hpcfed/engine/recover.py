"""A rank dies, and the run goes on with those that are left.

Results do not depend on the number of ranks. So to go on is to resume on fewer ranks, in the same
processes: data and partition are in memory; state and clients come from the copies that ranks keep
of one another (checkpoint.mirror), else from the newest checkpoint, else the run begins anew.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.cluster.pulse import Pulse
from hpcfed.comm import ulfm
from hpcfed.comm.agree import agreed
from hpcfed.engine import folder, saving, snapshot
from hpcfed.engine.mirror import Mirror
from hpcfed.engine.signals import Signals
from hpcfed.engine.watchdog import Watchdog
from hpcfed.errors import RankLost, printable
from hpcfed.status import FAULT, RESUME_ME

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.engine.rounds import Rounds
    from hpcfed.engine.world import World


@dataclass
class Course:
    """What outlives a death: what never changes, and how far the run has come."""

    job: Job
    facts: World | None = None
    begun: bool = False  # the run folder holds this run, and nothing of one before it
    reached: int = 0  # rounds done
    deaths: list[str] = field(default_factory=list)  # not yet told
    mirror: Mirror | None = None
    rows: dict[str, Any] = field(default_factory=dict)  # of the results, that may not be on disk
    saved: int = 0  # rounds of the checkpoint that the run goes on from

    def __post_init__(self) -> None:
        self.pulse = Pulse()
        self.signals = Signals(self.pulse, self.job.run.grace / 2)
        self.watchdog: Watchdog | None = None

    def watch(self, comm: Comm, run: Path) -> None:
        """Let a watchdog look after these ranks; the one of the ranks before was there until
        now.
        """
        if self.watchdog:
            self.watchdog.stop()
        self.watchdog = Watchdog(self.pulse, comm.rank, comm.size, run, self.job.run.watchdog)
        self.watchdog.start()

    def close(self) -> None:
        """Neither watchdog nor signals any more."""
        self.signals.close()
        if self.watchdog:
            self.watchdog.stop()

    def agree(self, comm: Comm) -> None:
        """What all ranks that are left can build on; collective. The death may have hit them at
        different moments.
        """
        told = comm.gather({comm.rank: [self.facts is not None, self.begun, self.reached]})
        comm.confirm()
        known, begun, reached = zip(*told.values(), strict=True)
        self.facts = self.facts if all(known) else None
        self.begun, self.reached, self.rows = any(begun), max(reached), {}

    def restore(self, rounds: Rounds, run: Path) -> None:
        """Bring the run to where it goes on; collective."""
        comm, copy = (
            rounds.fed.comm,
            self.mirror.restored(rounds.fed) if self.mirror and self.begun else None,
        )
        if copy:
            agreed(comm, lambda: snapshot.take_up(rounds, copy))
            rounds.fed.spread()
            self.rows = copy.get("rows")
        elif self.begun and saving.exists(rounds.fed, run):
            saving.restore(rounds, run)
        elif self.job.resume:
            saving.restore(rounds, self.job.resume)
        comm.confirm()
        self.saved = 0 if copy else rounds.t
        self.tell(rounds, copy is not None)

    def tell(self, rounds: Rounds, copied: bool) -> None:
        """Say who died and what it costs, once."""
        if self.deaths:
            source = (
                "copies in memory"
                if copied
                else "the last checkpoint"
                if rounds.t
                else "the beginning"
            )
            source += " (no copy in memory is whole)" if self.mirror and not copied else ""
            fed, again = rounds.fed, max(0, self.reached - rounds.t)
            fed.say(
                f"{'; '.join(self.deaths)}, {fed.comm.size} left; the run goes on from {source}, "
                f"after "
                f"round {rounds.t}; finished rounds to repeat: {again}"
            )
            self.deaths = []


def surviving(course: Course, comm: Comm, attempt: Callable[[Course, Comm], int]) -> int:
    """attempt(course, comm), again with the ranks that are left whenever one dies; collective. The
    exit status.
    """
    try:
        return going_on(course, comm, attempt)
    finally:
        course.close()


def going_on(course: Course, comm: Comm, attempt: Callable[[Course, Comm], int]) -> int:
    """What `surviving` does."""
    if course.job.checkpoint.mirror:
        course.mirror = mirror(course.job, comm)
    while True:
        try:
            if comm.lost:
                course.agree(comm)
            return attempt(course, comm)
        except RankLost:
            pass  # what follows is outside: the error holds all that the attempt made
        except Exception:
            if not comm.broken():  # what comes from a dead rank may be anything, and give any error
                raise
        gc.collect()
        shrink(course, comm)
        if course.job.run.on_fault != "shrink":
            return end(course, comm)


def mirror(job: Job, comm: Comm) -> Mirror | None:
    """A mirror, where it is of use; rank 0 says why if not."""
    if comm.size > 1 and ulfm.available() and job.run.on_fault == "shrink":
        return Mirror()
    if comm.size > 1 and comm.rank == 0:
        why = (
            "run.on_fault is not 'shrink'"
            if ulfm.available()
            else "the run needs mpirun --with-ft ulfm for that"
        )
        print(
            printable(f"hpcfed: warning: checkpoint.mirror is of no use: {why}; nothing is copied"),
            file=sys.stderr,
        )
    return None


def shrink(course: Course, comm: Comm) -> None:
    """Let those that are left be all; rank 0, who speaks, may be another one now."""
    was, size = comm.rank, comm.size
    dead = comm.shrink()
    course.deaths.append(f"rank{'s'[: len(dead) > 1]} {', '.join(map(str, dead))} of {size} died")
    if was and not comm.rank:
        sys.stdout = sys.__stdout__


def end(course: Course, comm: Comm) -> int:
    """Leave as run.on_fault asks for; returns the exit status."""
    if comm.rank == 0:
        print(
            printable(
                f"hpcfed: {'; '.join(course.deaths)}; run.on_fault = {course.job.run.on_fault!r} "
                f"ends the run here; "
                f"continue with --resume {folder.of(course.job)}"
            ),
            file=sys.stderr,
            flush=True,
        )
    return RESUME_ME if course.job.run.on_fault == "restart" else FAULT
