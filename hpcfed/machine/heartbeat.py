"""The current activity of a rank, and requests to stop it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic


class Stopped(Exception):
    """A signal ends the run inside a round.

    everywhere: whether all ranks raise it; if not, the others do not know of it yet.
    """

    everywhere = False


class Heartbeat:
    """A counter of a rank's progress, and where the rank is. Updates cost next to nothing."""

    def __init__(self) -> None:
        self.beats = 0
        self.t, self.phase, self.client = 0, "start", ""  # round, phase, the last client in words
        self.exchange = ""  # the last one, in words
        self.done, self.total = 0, 0  # this rank's clients done in the round, and all of them
        # called when a client begins or ends
        self.look: Callable[[Heartbeat], None] = lambda heartbeat: None
        # after a stop request: monotonic time until which the current client may train
        self.latest = inf

    @property
    def stop_requested(self) -> bool:
        """Whether a signal has requested a stop."""
        return self.latest < inf

    def ask(self, seconds: float) -> None:
        """Request a stop before the next client, or after these seconds also during a client."""
        self.latest = min(self.latest, monotonic() + seconds)

    def enter(self, phase: str) -> None:
        """Record that the rank enters this phase."""
        self.beats += 1
        self.phase = phase

    def visit(self, client: str) -> None:
        """Record that the rank begins this client. Raises Stopped if a stop is requested."""
        self.beats += 1
        self.client = client
        if self.stop_requested:
            raise Stopped
        self.look(self)

    def expect(self, clients: int) -> None:
        """Record the start, or restart, of a round; `clients` of the cohort are on this rank."""
        self.done, self.total = 0, clients
        self.look(self)

    def finish(self, clients: int) -> None:
        """Record that more clients are done: their number."""
        self.done += clients
        self.look(self)

    def step(self) -> None:
        """Record a training step. Raises Stopped if the time after a stop request is over."""
        self.beats += 1
        if self.latest < inf and monotonic() > self.latest:
            raise Stopped

    def __str__(self) -> str:
        last = {"client": self.client, "exchange": self.exchange}
        return f"round {self.t + 1}, {self.phase}" + "".join(
            f", last {n} {v}" for n, v in last.items() if v
        )
