"""What a run does when it is asked to stop."""

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
    """Inside the block this handler gets them; afterwards those of before.

    In a thread that is not the main one Python hands out no signals: nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)


@contextmanager
def of_program() -> Iterator[None]:
    """Of the whole program: before a run heeds signals they end it at once, without a traceback,
    and from its end on they change nothing any more: all is saved, and the exit status is known.
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
    """A signal that no run heeds."""
    if not RUNS["over"]:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


class Signals:
    """SIGTERM, SIGUSR1 and SIGINT ask this rank to stop, from `heed` to `close`.

    They end no process in between.

    seconds: what clients in hand still have.
    got: the first signal that came.
    """

    def __init__(self, heartbeat: Heartbeat, seconds: float):
        self.heartbeat, self.seconds = heartbeat, seconds
        self.got: int | None = None
        self.heeding: ExitStack | None = None

    def heed(self) -> None:
        """From now on; again after a death, which changes nothing."""
        if self.heeding is None:
            self.heeding = ExitStack()
            self.heeding.enter_context(handle_signals(self.ask))

    def ask(self, number: int, _: object) -> None:
        self.got = self.got or number
        self.heartbeat.ask(self.seconds)

    def close(self) -> None:
        """The handlers of before; to the program they mean nothing any more."""
        RUNS["over"] = True
        if self.heeding:
            self.heeding.close()
            self.heeding = None
