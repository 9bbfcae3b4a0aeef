"""Recovery: when a rank dies, the run continues on the remaining ranks.

Results do not depend on the number of ranks, so to continue is to resume on fewer ranks in the same
processes. Data and partition are in memory. State and clients come from buddy copies
(checkpoint.mirror), else from the newest checkpoint; without one the run begins anew.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.comm import ulfm
from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.core.errors import CheckpointError, HpcfedError, RankLost, printable
from hpcfed.core.exit_status import FAULT, RESUME_ME
from hpcfed.engine import folder
from hpcfed.engine.fault_tolerance import save_restore, snapshot
from hpcfed.engine.fault_tolerance.buddy_copy import BuddyCopy
from hpcfed.engine.fault_tolerance.signals import Signals
from hpcfed.engine.fault_tolerance.watchdog import Guard, Watchdog
from hpcfed.engine.folder import Claim
from hpcfed.machine.heartbeat import Heartbeat
from hpcfed.storage import names
from hpcfed.storage.lock import LONGEST
from hpcfed.storage.record import recover

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.engine.fault_tolerance.snapshot import Snapshot
    from hpcfed.engine.rounds import Rounds
    from hpcfed.federation.world import World
    from hpcfed.storage.record import Record
    from hpcfed.storage.results import Results


@dataclass
class Course:
    """The part of a run that outlives a rank's death: constants, and how far the run has come."""

    job: Job
    facts: World | None = None
    begun: bool = False  # the run folder has only files of this run
    reached: int = 0  # rounds done
    deaths: list[str] = field(default_factory=list)  # not yet reported
    buddy_copy: BuddyCopy | None = None
    rows: dict[str, Any] = field(default_factory=dict)  # results that may not be on disk
    results: Results | None = None  # on rank 0, while it writes them
    record: Record | None = None  # and their contents when another rank died
    saved: int = 0  # rounds of the checkpoint that the run goes on from
    guard: Guard | None = None  # time limit for phases without watchdog files
    owns_process: bool = True  # whether the process exists for this run, and may be ended with it
    claim: Claim = field(default_factory=Claim)

    def __post_init__(self) -> None:
        self.heartbeat = Heartbeat()
        self.signals = Signals(self.heartbeat, self.job.run.grace / 2)
        self.watchdog: Watchdog | None = None

    def enter(self, comm: Comm) -> Path | None:
        """Claim and return the run folder, and start the watchdog there; collective.

        Returns None for a dry run.
        """
        if self.guard and self.job.force:  # which may wait for signs of another run
            self.guard.stop()
            self.guard.begin("at the start", more=LONGEST)
        run = None if self.job.dry_run else self.claim.enter(self.job, comm)
        if run:
            if self.owns_process:
                self.watch(comm, run)
            elif self.claim.lock:
                self.claim.lock.end = None
        if self.guard:
            self.guard.stop()
        return run

    def watch(self, comm: Comm, run: Path) -> None:
        """Start a watchdog for these ranks, and stop the one of the ranks before the death."""
        if self.watchdog:
            self.watchdog.stop()
        self.watchdog = Watchdog(self.heartbeat, comm.rank, comm.size, run, self.job.run.watchdog)
        self.watchdog.start()

    def under_way(self) -> None:
        """Record that the start is over: from now on the watchdog requires progress."""
        if self.watchdog:
            self.watchdog.starting = False

    def check(self) -> None:
        """Check that the folder still belongs to this run, before anything is written to it."""
        if self.claim.lock:
            self.claim.lock.check()

    def close(self, comm: Comm, together: bool) -> None:
        """Stop the watchdog and signal handling.

        together: whether all ranks are here, and release the folder.
        """
        self.signals.close()
        if self.watchdog:
            self.watchdog.stop()
        if not together:  # others may still write; the lock is found dead later
            return
        if self.guard:
            self.guard.begin("at the end")
        with suppress(RankLost):
            comm.barrier()
        if self.guard:
            self.guard.stop()
        self.claim.leave()

    def agree(self, comm: Comm) -> None:
        """Agree on the state that all remaining ranks share; collective.

        The death may have hit them at different moments.
        """
        mine = [self.facts is not None, self.begun, self.reached, self.claim.world]
        told = comm.gather({comm.rank: mine})
        comm.confirm()
        known, begun, reached, worlds = zip(*told.values(), strict=True)
        self.claim.world = next(filter(None, worlds), "")
        self.facts = self.facts if all(known) else None
        self.begun, self.reached, self.rows = any(begun), max(reached), {}

    def remember(self) -> None:
        """Keep the records of the results, and release the attempt that wrote them."""
        if self.results:
            self.record, self.results = self.results.record(), None

    def has_records(self, comm: Comm, run: Path, copy: Snapshot) -> bool:
        """Return whether each round of a copy has its record; collective.

        A record may be in the copy, in memory or on disk.
        """

        def found() -> bool:
            rows = copy.get("rows")
            needed = next((t for t in range(copy.rounds, 0, -1) if str(t - 1) not in rows), 0)
            try:
                return bool(not needed or self.record or recover(run, needed).rounds >= needed)
            except CheckpointError:
                return False

        return comm.bcast(on_all_ranks(comm, lambda: found() if comm.rank == 0 else False))

    def restore(self, rounds: Rounds, run: Path) -> None:
        """Bring the run to the state from which it continues; collective."""
        comm, buddy = rounds.fed.comm, self.buddy_copy
        copy = buddy.restore(rounds.fed) if buddy and self.begun else None
        if buddy and copy and not self.has_records(comm, run, copy):
            rounds.fed.warnings.say(
                f"warning: {names.results_file(run)}: damaged or missing; rounds are repeated, so "
                "that none is without a record"
            )
            buddy.kept, copy = [], None
        if copy:
            on_all_ranks(comm, lambda: snapshot.take_up(rounds, copy))
            rounds.fed.turns.share_failures()
            self.rows = copy.get("rows")
        elif self.begun and save_restore.exists(rounds.fed, run):
            save_restore.restore(rounds, run)
        elif self.job.resume:
            save_restore.restore(rounds, self.job.resume)
        comm.confirm()
        self.saved = 0 if copy else rounds.t
        self.tell(rounds, copy is not None)

    def tell(self, rounds: Rounds, copied: bool) -> None:
        """Print once which ranks died and how many rounds are repeated."""
        if self.deaths:
            source = (
                "copies in memory"
                if copied
                else "the last checkpoint"
                if rounds.t
                else "the beginning"
            )
            source += " (no copy in memory is whole)" if self.buddy_copy and not copied else ""
            fed, again = rounds.fed, max(0, self.reached - rounds.t)
            fed.warnings.say(
                f"{'; '.join(self.deaths)}, {fed.comm.size} left; the run goes on from {source}, "
                f"after "
                f"round {rounds.t}; finished rounds to repeat: {again}"
            )
            self.deaths = []


def run_with_recovery(course: Course, comm: Comm, attempt: Callable[[Course, Comm], int]) -> int:
    """Return the exit status of attempt(course, comm); collective.

    Whenever a rank dies, it is called again with the remaining ranks.
    """
    together = False
    try:
        status = retry_attempts(course, comm, attempt)
        together = True
        return status
    except BaseException as error:
        together = comm.size == 1 or (isinstance(error, HpcfedError) and error.everywhere)
        raise
    finally:
        course.close(comm, together)


def retry_attempts(course: Course, comm: Comm, attempt: Callable[[Course, Comm], int]) -> int:
    """Repeat the attempt after each death; part of `run_with_recovery`."""
    if course.job.checkpoint.mirror:
        course.buddy_copy = make_buddy_copy(course.job, comm)
    while True:
        try:
            if comm.lost:
                course.agree(comm)
            return attempt(course, comm)
        except RankLost:
            pass  # continue outside: the error keeps references to all of the attempt
        except Exception:
            if not comm.has_lost_rank():  # data from a dead rank may be wrong, and cause any error
                raise
        course.remember()
        gc.collect()
        shrink(course, comm)
        if course.job.run.on_fault != "shrink":
            return end(course, comm)


def make_buddy_copy(job: Job, comm: Comm) -> BuddyCopy | None:
    """Return the buddy copies of a run; None if they are of no use.

    In that case rank 0 prints a warning with the reason.
    """
    if comm.size > 1 and ulfm.available() and job.run.on_fault == "shrink":
        return BuddyCopy()
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
    """Continue with the remaining ranks. Another rank may be rank 0, which prints, afterwards."""
    was, size = comm.rank, comm.size
    dead = comm.shrink()
    course.deaths.append(f"rank{'s'[: len(dead) > 1]} {', '.join(map(str, dead))} of {size} died")
    if was and not comm.rank:
        sys.stdout = sys.__stdout__


def end(course: Course, comm: Comm) -> int:
    """End the run as run.on_fault says, and return the exit status."""
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
