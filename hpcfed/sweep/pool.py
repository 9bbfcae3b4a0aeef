"""Runs of a sweep side by side; none ends another."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic

from hpcfed.comm.settings import cores
from hpcfed.engine.signals import heard
from hpcfed.errors import printable
from hpcfed.report.summary import accuracy, share
from hpcfed.report.tables import duration
from hpcfed.status import DONE, RESUME_ME, WRONG, as_shells_count
from hpcfed.storage import names
from hpcfed.storage import sweep as store
from hpcfed.storage.record import load
from hpcfed.storage.sweep import Member, Sweep
from hpcfed.sweep.gpus import shares, usable
from hpcfed.sweep.launch import finished, held, reason, start

LOOK = 0.5  # seconds; a signal may reach another thread, and is not seen before this one wakes up
BUSY = -1  # instead of an exit status: another process runs it
LEFT = -2  # and: not begun, for a signal came before


@dataclass(frozen=True)
class Outcome:
    """What became of a run: its exit status, or BUSY or LEFT, and what is to be said about it."""

    run: Member
    status: int
    line: str

    @property
    def failed(self) -> bool:
        return self.status not in (DONE, RESUME_ME, BUSY, LEFT)


class Pool:
    """Runs so many at a time. SIGTERM, SIGUSR1 and SIGINT ask those that go on to save and stop; no
    more are begun.

    They are asked by SIGUSR1, which mpirun hands on to the ranks. Who asks twice is in a hurry:
    that signal goes to the runs as it is.
    """

    def __init__(self, sweep: Sweep, at_once: int):
        self.sweep, self.at_once, self.asked = sweep, at_once, False
        self.going: list[subprocess.Popen[bytes]] = []
        self.shares: SimpleQueue[str | None] = SimpleQueue()  # of the GPUs, one for each place
        for gpus in shares(usable(sweep), at_once) if at_once > 1 else [None]:
            self.shares.put(gpus)

    def run(self, numbers: Iterable[int]) -> list[Outcome]:
        """These runs, in this order as places get free; what became of each."""
        with heard(self.ask), ThreadPoolExecutor(self.at_once) as threads:
            tasks = [threads.submit(self.one, i) for i in numbers]
            while wait(tasks, LOOK).not_done:
                continue
            return [task.result() for task in tasks]

    def ask(self, number: int, _: object) -> None:
        hurry, self.asked = self.asked, True
        for process in list(self.going):
            process.send_signal(number if hurry else signal.SIGUSR1)

    def one(self, i: int) -> Outcome:
        """One run, with the GPUs of a place that is free."""
        gpus = self.shares.get()
        try:
            return self.with_gpus(i, gpus)
        finally:
            self.shares.put(gpus)

    def with_gpus(self, i: int, gpus: str | None) -> Outcome:
        """One run, where there is anything to do."""
        run = self.sweep.runs[i]
        with held(names.log_file(self.sweep.folder, run.name)) as log:
            if log is None:
                return self.said(Outcome(run, BUSY, "left alone: another process runs it"), i)
            if finished(self.sweep, run):
                store.note(self.sweep, run.name, None)
                return self.said(Outcome(run, DONE, "finished before"), i)
            if self.asked:
                return Outcome(run, LEFT, "not begun")
            store.note(self.sweep, run.name, None)
            begun = monotonic()
            process = start(self.sweep, run, log, gpus)
        status = self.through(process)
        return self.said(self.outcome(run, status, monotonic() - begun), i)

    def through(self, process: subprocess.Popen[bytes]) -> int:
        """The exit status of a run, as shells count."""
        self.going.append(process)
        if self.asked:  # before it could be told
            process.send_signal(signal.SIGUSR1)
        status = process.wait()
        self.going.remove(process)
        return as_shells_count(status)

    def outcome(self, run: Member, status: int, seconds: float) -> Outcome:
        """What an exit status means; all but success is noted beside the log."""
        if status == DONE and finished(self.sweep, run):
            mean = accuracy(load(self.sweep.folder / run.name))["mean"]
            return Outcome(run, DONE, f"done, accuracy {share(mean)}, {duration(seconds)}")
        why = reason(names.log_file(self.sweep.folder, run.name))
        if status == DONE or (
            self.asked and status != WRONG
        ):  # Open MPI's mpirun may lose a node, and return 0;
            status = RESUME_ME  # one that was only starting dies of the signal; nothing is lost
        store.note(self.sweep, run.name, store.now_ended(status, why))
        line = "stopped" if status == RESUME_ME else f"failed with status {status}: {why}"
        return Outcome(run, status, line)

    def said(self, outcome: Outcome, i: int) -> Outcome:
        print(printable(f"{i}: {outcome.run.name}: {outcome.line}"), flush=True)
        return outcome


def room(sweep: Sweep) -> int:
    """How many runs this machine has room for: each has ranks, each rank its threads, and a GPU
    where there are any.
    """
    threads = max(run.fields["run.threads"] for run in sweep.runs)
    places = min(cores() // (sweep.ranks * threads), len(sweep.runs))
    gpus = len(usable(sweep)) if places > 1 else 0
    return max(1, min(places, gpus // sweep.ranks) if gpus else places)
