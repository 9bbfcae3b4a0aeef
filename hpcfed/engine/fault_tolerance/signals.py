"""Handling of the signals that ask a run to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from hpcfed.machine.heartbeat import Heartbeat

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)  # that ask to stop


@contextmanager
def handle_signals(handler: Callable[..., object]) -> Iterator[None]:
    """Install this handler inside the block, and restore the previous ones afterwards.

    Does nothing outside the main thread, because Python delivers no signals there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def of_program() -> Iterator[None]:
    """Handle signals of the whole program, outside its runs.

    Before a run handles signals itself they end the program at once, without a traceback. After the
    run they are ignored: everything is saved, and the exit status is known.
    """
    RUNS["over"] = False
    for number in SIGNALS:
        signal.signal(number, end_or_pass)
    try:
        yield
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # also while Python and MPI end


RUNS = {"over": False}  # whether the program's run has come to its end


def end_or_pass(number: int, _: object) -> None:
    """Handle a signal outside a run: end the program before the run, do nothing after it."""
    if not RUNS["over"]:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


class Signals:
    """Handler by which SIGTERM, SIGUSR1 and SIGINT ask this rank to stop, from `heed` to `close`.

    In between they end no process. What follows:

    1. `Heartbeat.visit` raises Stopped before the rank's next client, and `Heartbeat.step` in the
       training of a client that takes longer than `seconds`; all ranks raise it at their next
       exchange (`Exchange.wait`). If all of the round is done, nothing raises it: the round counts.
    2. `Rounds.step` undoes the round. The turns that clients have completed stay in the replay log.
    3. `Loop.run` saves a checkpoint: the state before the round, and with each client its completed
       turns. When all of it is on disk, the run ends with exit status 75 (RESUME_ME).

    seconds: how long clients that are being trained may continue (half of run.grace).
    got: the first signal received, or None.
    """

    def __init__(self, heartbeat: Heartbeat, seconds: float):
        self.heartbeat, self.seconds = heartbeat, seconds
        self.got: int | None = None
        self.heeding: ExitStack | None = None

    def heed(self) -> None:
        """Start to handle signals; a second call, after a death, changes nothing."""
        if self.heeding is None:
            self.heeding = ExitStack()
            self.heeding.enter_context(handle_signals(self.ask))

    def ask(self, number: int, _: object) -> None:
        self.got = self.got or number
        self.heartbeat.ask(self.seconds)

    def close(self) -> None:
        """Restore the previous handlers; from then on the program ignores these signals."""
        RUNS["over"] = True
        if self.heeding:
            self.heeding.close()
            self.heeding = None
