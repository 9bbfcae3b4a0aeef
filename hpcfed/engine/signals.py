"""What a run does when it is asked to stop."""

from __future__ import annotations

import signal

from hpcfed.cluster.pulse import Pulse

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Signals:
    """SIGTERM, SIGUSR1 and SIGINT ask this rank to stop, from `watch` to `close`; they end no process in between.

    seconds: what clients in hand still have.
    """

    def __init__(self, seconds: float):
        self.seconds, self.asked = seconds, False
        self.pulse = Pulse()
        self.before: dict[int, signal.Handlers] = {}

    def watch(self, pulse: Pulse) -> None:
        """Ask it through this pulse from now on; what was asked before is asked again."""
        self.pulse = pulse
        self.before = self.before or {number: signal.signal(number, self.ask) for number in SIGNALS}
        if self.asked:
            self.ask()

    def ask(self, *_: object) -> None:
        self.asked = True
        self.pulse.ask(self.seconds)

    def close(self) -> None:
        """The handlers of before."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}
