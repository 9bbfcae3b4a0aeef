"""What a run does when it is asked to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from hpcfed.cluster.pulse import Pulse

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)  # that ask to stop


@contextmanager
def heard(handler: Callable[..., object]) -> Iterator[None]:
    """Inside the block this handler gets them; afterwards those of before."""
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)


class Signals:
    """SIGTERM, SIGUSR1 and SIGINT ask this rank to stop, from `heed` to `close`; they end no
    process in between.

    seconds: what clients in hand still have.
    """

    def __init__(self, pulse: Pulse, seconds: float):
        self.pulse, self.seconds = pulse, seconds
        self.heeding: ExitStack | None = None

    def heed(self) -> None:
        """From now on; again after a death, which changes nothing."""
        if self.heeding is None:
            self.heeding = ExitStack()
            self.heeding.enter_context(heard(self.ask))

    def ask(self, *_: object) -> None:
        self.pulse.ask(self.seconds)

    def close(self) -> None:
        """The handlers of before."""
        if self.heeding:
            self.heeding.close()
            self.heeding = None
