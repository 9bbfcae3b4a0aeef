"""What watches this rank, and what asks it to stop, from the start of a run to its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.engine.fault_tolerance.signals import Signals
from hpcfed.engine.fault_tolerance.watchdog import Guard, Watchdog
from hpcfed.machine.heartbeat import Heartbeat
from hpcfed.storage.lock import LONGEST

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job


class Monitor:
    """The heartbeat of this rank, the signals that stop it, and the watchdogs that listen to it.

    guard: time limit for phases without watchdog files; None: there is none.
    owns_process: whether the process exists for this run, and may be ended with it.
    """

    def __init__(self, job: Job, guard: Guard | None = None, owns_process: bool = True) -> None:
        self.job, self.guard, self.owns_process = job, guard, owns_process
        self.heartbeat = Heartbeat()
        self.signals = Signals(self.heartbeat, job.run.grace / 2)
        self.watchdog: Watchdog | None = None

    def wait_for_folder(self) -> None:
        """Extend the time limit of the start, if the job may wait for signs of another run."""
        if self.guard and self.job.force:
            self.guard.stop()
            self.guard.begin("at the start", more=LONGEST)

    def watch(self, comm: Comm, folder: Path | None) -> None:
        """Start a watchdog for these ranks, and stop the one of the ranks before a death.

        folder: of the run; None for a dry run, which has no watchdog.
        """
        if folder and self.owns_process:
            if self.watchdog:
                self.watchdog.stop()
            seconds = self.job.run.watchdog
            self.watchdog = Watchdog(self.heartbeat, comm.rank, comm.size, folder, seconds)
            self.watchdog.start()
        if self.guard:
            self.guard.stop()

    def begin_rounds(self) -> None:
        """Heed signals, and require progress: the start is over."""
        self.signals.heed()
        if self.watchdog:
            self.watchdog.starting = False

    def stop(self) -> None:
        """Stop the watchdog, and the handling of signals."""
        self.signals.close()
        if self.watchdog:
            self.watchdog.stop()
