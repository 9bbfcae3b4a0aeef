"""What a run does when it is asked to stop."""

from __future__ import annotations

import signal

from hpcfed.cluster.pulse import Pulse

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Signals:
    """SIGTERM, SIGUSR1 and SIGINT ask this rank to stop, from `heed` to `close`; they end no process in between.

    seconds: what clients in hand still have.
    """

    def __init__(self, pulse: Pulse, seconds: float):
        self.pulse, self.seconds = pulse, seconds
        self.before: dict[int, signal.Handlers] = {}

    def heed(self) -> None:
        """From now on; again after a death, which changes nothing."""
        self.before = self.before or {number: signal.signal(number, self.ask) for number in SIGNALS}

    def ask(self, *_: object) -> None:
        self.pulse.ask(self.seconds)

    def close(self) -> None:
        """The handlers of before."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}
