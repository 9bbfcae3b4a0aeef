"""Concurrent execution of a sweep's runs; none ends another."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Self

from hpcfed.comm.settings import cores
from hpcfed.core.errors import printable
from hpcfed.core.exit_status import DONE, RESUME_ME, WRONG, as_shells_count
from hpcfed.core.paths import tail
from hpcfed.core.progress import display, interactive
from hpcfed.core.tables import duration
from hpcfed.engine.fault_tolerance.signals import handle_signals
from hpcfed.launch.sweep.gpus import shares, usable
from hpcfed.launch.sweep.launch import is_finished, lock_log, reason, start
from hpcfed.results.columns import format_metric, main_metric, title_metric
from hpcfed.results.summary import metric
from hpcfed.storage import lock, names
from hpcfed.storage import sweep as store
from hpcfed.storage.record import load
from hpcfed.storage.sweep import Member, Sweep

if TYPE_CHECKING:
    from rich.progress import TaskID

RUNNING = re.compile(r"^round (\d+/\d+)", re.MULTILINE)  # a run's line after each round
MOST = 12  # runs that have a bar
LAST = 4096  # bytes at the end of a log that are searched for it
LOOK = 0.5  # seconds; a signal may reach another thread, and is not seen before this one wakes up
BUSY = -1  # instead of an exit status: another process runs it
LEFT = -2  # and: not started, because a signal came before


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: its exit status, or BUSY or LEFT, and a line about it."""

    run: Member
    status: int
    line: str

    @property
    def failed(self) -> bool:
        return self.status != DONE and not self.unfinished

    @property
    def unfinished(self) -> bool:
        """Whether it has not been started, or was interrupted and can be resumed."""
        return self.status in (RESUME_ME, BUSY, LEFT)


class Pool:
    """A pool that does several runs at a time.

    SIGTERM, SIGUSR1 and SIGINT ask active runs to save and stop; no further ones start. Runs
    are asked by SIGUSR1, which mpirun hands on to the ranks. A second signal is passed on
    unchanged, to stop them at once.
    """

    def __init__(
        self, sweep: Sweep, at_once: int, hopeless: Callable[[Member], bool] | None = None
    ):
        """Make a pool.

        hopeless: whether an active run should be ended, asked often; None: none is. The runs are
        then the seeds of one trial, which ends with the first of them.
        """
        self.sweep, self.at_once, self.stopping = sweep, at_once, False
        self.hopeless = hopeless
        self.pruned: set[str] = set()  # names of runs
        self.active: list[tuple[Member, subprocess.Popen[bytes]]] = []
        self.shares: SimpleQueue[str | None] = SimpleQueue()  # of the GPUs, one for each place
        for gpus in shares(usable(sweep), at_once) if at_once > 1 else [None]:
            self.shares.put(gpus)

    def run(self, numbers: Iterable[int]) -> list[Outcome]:
        """Do these runs, in this order as places get free, and return their outcomes."""
        with (
            handle_signals(self.ask),
            Board() as board,
            ThreadPoolExecutor(self.at_once) as threads,
        ):
            tasks = [threads.submit(self.one, i) for i in numbers]
            while left := wait(tasks, LOOK).not_done:
                board.show(len(tasks) - len(left), len(tasks), self.rounds())
                self.prune()
            return [self.look_again(task.result()) for task in tasks]

    def look_again(self, outcome: Outcome) -> Outcome:
        """Return the outcome, of a run that another process had as it is now."""
        if outcome.status == BUSY and is_finished(self.sweep, outcome.run):
            return Outcome(outcome.run, DONE, "finished by another process")
        return outcome

    def rounds(self) -> list[str]:
        """Return the progress of the active runs, from their last output."""
        texts = []
        for run, _ in list(self.active):
            log = names.log_file(self.sweep.folder, run.name)
            said = RUNNING.findall(tail(log, LAST).rpartition("\n$ ")[2]) if log.is_file() else []
            done = said[-1] if said else f"0/{run.fields['rounds']}"
            texts.append(f"{run.name} round {done}")
        return texts

    def prune(self) -> None:
        """Ask active runs to stop once one is hopeless; a sweep never continues them."""
        if self.hopeless is None:
            return
        for run, process in list(self.active):
            if run.name not in self.pruned and (self.pruned or self.hopeless(run)):
                self.pruned.add(run.name)
                process.send_signal(signal.SIGUSR1)

    def ask(self, number: int, _: object) -> None:
        hurry, self.stopping = self.stopping, True
        for _, process in list(self.active):
            process.send_signal(number if hurry else signal.SIGUSR1)

    def one(self, i: int) -> Outcome:
        """Do one run, with the GPUs of a free place."""
        gpus = self.shares.get()
        try:
            return self.with_gpus(i, gpus)
        finally:
            self.shares.put(gpus)

    def with_gpus(self, i: int, gpus: str | None) -> Outcome:
        """Do one run, unless it is finished or another process does it."""
        run = self.sweep.runs[i]
        with lock_log(names.log_file(self.sweep.folder, run.name)) as log:
            if log is None:
                return self.print_outcome(
                    Outcome(run, BUSY, "left alone: another process runs it"), i
                )
            if is_finished(self.sweep, run):
                store.note(self.sweep, run.name, None)
                return self.print_outcome(Outcome(run, DONE, "finished before"), i)
            if is_pruned(self.sweep, run):
                return self.print_outcome(Outcome(run, DONE, "pruned before"), i)
            entry = lock.find_lock(self.sweep.folder / run.name)
            silent = entry is not None and lock.is_silent(entry)
            if entry and not silent:
                line = f"left alone: {entry.holder} runs it, last heard of at {entry.last}"
                return self.print_outcome(Outcome(run, BUSY, line), i)
            if self.stopping:
                return Outcome(run, LEFT, "not started")
            if self.pruned:
                return self.print_outcome(self.note_pruned(run), i)
            store.note(self.sweep, run.name, None)
            begun = monotonic()
            process = start(self.sweep, run, log, gpus, force=silent)
            print_begin(self.sweep, i)
        self.active.append((run, process))
        try:
            status = self.through(process)
        finally:
            self.active.remove((run, process))
        return self.print_outcome(self.outcome(run, status, monotonic() - begun), i)

    def through(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for a run and return its exit status, by the convention of shells."""
        if self.stopping:  # before it could get the signal
            process.send_signal(signal.SIGUSR1)
        return as_shells_count(process.wait())

    def outcome(self, run: Member, status: int, seconds: float) -> Outcome:
        """Return the outcome for an exit status; all but success is recorded beside the log."""
        if status == DONE and is_finished(self.sweep, run):
            line = describe_result(self.sweep.folder / run.name)
            return Outcome(run, DONE, f"{line}, {duration(seconds)}")
        why = reason(names.log_file(self.sweep.folder, run.name))
        # Open MPI's mpirun may lose a node, and return 0; a run that was only starting dies of the
        # signal, and nothing is lost
        asked = self.stopping or run.name in self.pruned
        if status == DONE or (asked and status != WRONG):
            status = RESUME_ME
        if status == RESUME_ME and run.name in self.pruned:
            return self.note_pruned(run)
        store.note(self.sweep, run.name, store.make_end(status, why))
        line = "stopped" if status == RESUME_ME else f"failed with status {status}: {why}"
        return Outcome(run, status, line)

    def note_pruned(self, run: Member) -> Outcome:
        """Record that a run belongs to a hopeless trial, and return that as its outcome."""
        line = f"{store.PRUNED}: the trial's validation scores are below the median of those before"
        store.note(self.sweep, run.name, store.make_end(DONE, line))
        return Outcome(run, DONE, line)

    def print_outcome(self, outcome: Outcome, i: int) -> Outcome:
        print_line(i, outcome.run, outcome.line)
        return outcome


def print_begin(sweep: Sweep, i: int) -> None:
    """Print that run i of a sweep begins; its name says what varies."""
    print_line(i, sweep.runs[i], f"begins (run {i + 1} of {len(sweep.runs)})")


def print_line(i: int, run: Member, words: str) -> None:
    line = f"{i}: {run.name}: {words}"
    print(f"{printable(line)}\n", end="", flush=True)  # one write: several threads print


def describe_result(run: Path) -> str:
    """Return the result of a finished run in a few words."""
    record = load(run)
    name = main_metric(record)
    value = format_metric(name, metric(record, name)["mean"])
    return f"done, {title_metric(name)} {value}"


class Board:
    """The progress display of a sweep: bars on stderr if that is a terminal."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.tasks: list[TaskID] = []

    def __enter__(self) -> Self:
        self.bars = self.stack.enter_context(display()) if interactive(sys.stderr) else None
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def show(self, done: int, total: int, active: Sequence[str]) -> None:
        """Show done of total runs, and a line for each active run."""
        if self.bars is None:
            return
        texts = ["runs", *active[:MOST]]
        while len(self.tasks) < len(texts):
            self.tasks.append(self.bars.add_task("", total=total))
        while len(self.tasks) > len(texts):
            self.bars.remove_task(self.tasks.pop())
        for task, text in zip(self.tasks, texts, strict=True):
            name, _, rounds = text.rpartition(" round ")
            now, of = map(int, rounds.split("/")) if name else (done, total)
            self.bars.update(task, description=name or text, completed=now, total=of)


def is_pruned(sweep: Sweep, run: Member) -> bool:
    """Return whether a run was ended because it is hopeless."""
    end = store.last_end(sweep, run.name)
    return end is not None and end.line.startswith(store.PRUNED)


def runs_at_once(sweep: Sweep) -> int:
    """Return how many runs this machine can do at a time.

    Each has ranks, each rank its threads, and a GPU if there are any.
    """
    threads = max(run.fields["run.threads"] for run in sweep.runs)
    places = min(cores() // (sweep.ranks * threads), len(sweep.runs))
    gpus = len(usable(sweep)) if places > 1 else 0
    return max(1, min(places, gpus // sweep.ranks) if gpus else places)
