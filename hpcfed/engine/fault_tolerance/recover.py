"""Recovery: when a rank dies, the run continues on the remaining ranks.

Results do not depend on the number of ranks, so to continue is to resume on fewer ranks in the same
processes. Data and partition are in memory. State and clients come from buddy copies
(checkpoint.mirror), else from the newest checkpoint; without one the run starts from the beginning.
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
from hpcfed.config.load import continuing
from hpcfed.core.errors import WARNING, CheckpointError, HpcfedError, RankLost, printable
from hpcfed.core.exit_status import FAULT, RESUME_ME
from hpcfed.engine import folder
from hpcfed.engine.fault_tolerance import resume, snapshot
from hpcfed.engine.fault_tolerance.buddy_copy import BuddyCopy
from hpcfed.engine.fault_tolerance.monitor import Monitor
from hpcfed.engine.folder import Claim
from hpcfed.storage import names
from hpcfed.storage.record import recover

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.engine.fault_tolerance.snapshot import Snapshot
    from hpcfed.engine.fault_tolerance.watchdog import Guard
    from hpcfed.engine.rounds import Rounds
    from hpcfed.engine.world import World
    from hpcfed.storage.record import Record
    from hpcfed.storage.results import Results


@dataclass
class Records:
    """The results of the rounds done, as far as they are in the memory of rank 0.

    results: the results while they are written; record: their contents when another rank died.
    rows: of a copy, by round; they may not be on disk.
    """

    results: Results | None = None
    record: Record | None = None
    rows: dict[str, Any] = field(default_factory=dict)

    def detach(self) -> None:
        """Take over the contents of the results, and release the attempt that wrote them."""
        if self.results:
            self.record, self.results = self.results.record(), None

    def cover(self, run: Path, copy: Snapshot) -> bool:
        """Return whether each round of a copy has its record: in the copy, in memory or on disk."""
        rows = copy.get("rows")
        needed = next((t for t in range(copy.rounds, 0, -1) if str(t - 1) not in rows), 0)
        try:
            return bool(not needed or self.record or recover(run, needed).rounds >= needed)
        except CheckpointError:
            return False


class Course:
    """The part of a run that outlives a rank's death: its constants, and how far it has come.

    world: None until it is decided.
    begun: whether the run folder has only files of this run.
    reached: rounds done. saved: rounds of the checkpoint that the run continues from.
    deaths: not yet reported.
    """

    def __init__(self, job: Job, guard: Guard | None = None, owns_process: bool = True) -> None:
        self.job = job
        self.monitor = Monitor(job, guard, owns_process)
        self.claim = Claim()
        self.world: World | None = None
        self.begun, self.reached, self.saved = False, 0, 0
        self.deaths: list[str] = []
        self.buddy_copy: BuddyCopy | None = None
        self.records = Records()

    def enter(self, comm: Comm) -> Path | None:
        """Claim and return the run folder, and start the watchdog there; collective.

        Returns None for a dry run.
        """
        self.monitor.wait_for_folder()
        run = None if self.job.dry_run else self.claim.enter(self.job, comm)
        if self.claim.lock and not self.monitor.owns_process:
            self.claim.lock.end = None
        self.monitor.watch(comm, run)
        return run

    def check(self) -> None:
        """Check that the folder still belongs to this run, before anything is written to it."""
        if self.claim.lock:
            self.claim.lock.check()

    def close(self, comm: Comm, together: bool) -> None:
        """Stop the watchdog and signal handling.

        together: whether all ranks are here, and release the folder.
        """
        self.monitor.stop()
        if not together:  # others may still write; the lock is found dead later
            return
        guard = self.monitor.guard
        if guard:
            guard.begin("at the end")
        with suppress(RankLost):
            comm.barrier()
        if guard:
            guard.stop()
        self.claim.leave()

    def agree(self, comm: Comm) -> None:
        """Agree on the state that all remaining ranks share; collective.

        The death may have hit them at different moments.
        """
        mine = [self.world is not None, self.begun, self.reached, self.claim.world]
        states = comm.gather({comm.rank: mine})
        comm.confirm()
        decided, begun, reached, worlds = zip(*states.values(), strict=True)
        self.claim.world = next(filter(None, worlds), "")
        self.world = self.world if all(decided) else None
        self.begun, self.reached, self.records.rows = any(begun), max(reached), {}

    def restore(self, rounds: Rounds, run: Path) -> None:
        """Bring the run to the state from which it continues; collective."""
        comm, buddy = rounds.fed.comm, self.buddy_copy
        copy = buddy.restore(rounds.fed) if buddy and self.begun else None
        if buddy and copy and not comm.bcast(comm.rank == 0 and self.records.cover(run, copy)):
            rounds.fed.warnings.say(
                f"{names.results_file(run)}: damaged or missing; rounds are repeated, so "
                "that none is without a record"
            )
            buddy.copies, copy = [], None
        if copy:
            snapshot.take_up(rounds, copy)
            rounds.fed.turns.share_failures()
            self.records.rows = copy.get("rows")
        elif self.begun:
            resume.restore(rounds, run, needed=False)
        elif self.job.resume:
            resume.restore(rounds, self.job.resume)
        comm.confirm()
        self.saved = 0 if copy else rounds.t
        self.report_deaths(rounds, copy is not None)

    def report_deaths(self, rounds: Rounds, copied: bool) -> None:
        """Print once which ranks died and how many rounds are repeated."""
        if not self.deaths:
            return
        source = "the last checkpoint" if rounds.t else "the beginning"
        if copied:
            source = "copies in memory"
        elif self.buddy_copy:
            source += " (no copy in memory is complete)"
        fed, again = rounds.fed, max(0, self.reached - rounds.t)
        fed.warnings.say(
            f"{'; '.join(self.deaths)}, {fed.comm.size} left; the run continues from {source}, "
            f"after round {rounds.t}; finished rounds to repeat: {again}"
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
        course.records.detach()
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
            printable(f"{WARNING}checkpoint.mirror is of no use: {why}; nothing is copied"),
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
                f"continue with {continuing(course.job, folder.of(course.job))}"
            ),
            file=sys.stderr,
            flush=True,
        )
    return RESUME_ME if course.job.run.on_fault == "restart" else FAULT
