"""What a rank is doing at this moment, and whether it has been asked to stop."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic


class Stopped(Exception):
    """A signal ends the run inside a round.

    everywhere: all ranks raise it; else the others do not know of it yet.
    """

    everywhere = False


class Heartbeat:
    """A count that grows as long as the rank gets on, and where it is.

    To keep it costs next to nothing.
    """

    def __init__(self) -> None:
        self.beats = 0
        self.t, self.phase, self.client = 0, "start", ""  # round, phase, the last client in words
        self.exchange = ""  # the last one, in words
        self.done, self.total = 0, 0  # turns of this rank's clients in the round; its clients in it
        # told when a client begins or ends
        self.look: Callable[[Heartbeat], None] = lambda heartbeat: None
        self.latest = inf  # monotonic seconds until which a client in hand may be trained on

    @property
    def stop_requested(self) -> bool:
        """Whether a signal has asked to stop."""
        return self.latest < inf

    def ask(self, seconds: float) -> None:
        """Stop before the next client, and after so many seconds in the middle of one too."""
        self.latest = min(self.latest, monotonic() + seconds)

    def enter(self, phase: str) -> None:
        """The rank is in this phase now."""
        self.beats += 1
        self.phase = phase

    def visit(self, client: str) -> None:
        """The rank begins with this client; raises Stopped where it has been asked to stop."""
        self.beats += 1
        self.client = client
        if self.stop_requested:
            raise Stopped
        self.look(self)

    def expect(self, clients: int) -> None:
        """A round begins, also again, in which so many of this rank's clients take part."""
        self.done, self.total = 0, clients
        self.look(self)

    def finish(self, clients: int) -> None:
        """So many clients are through with their turn."""
        self.done += clients
        self.look(self)

    def step(self) -> None:
        """A step of training is done; raises Stopped where there is no time left for more."""
        self.beats += 1
        if self.latest < inf and monotonic() > self.latest:
            raise Stopped

    def __str__(self) -> str:
        last = {"client": self.client, "exchange": self.exchange}
        return f"round {self.t + 1}, {self.phase}" + "".join(
            f", last {n} {v}" for n, v in last.items() if v
        )
