"""Timing of a rank by phase."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from hpcfed.machine.heartbeat import Heartbeat


class Clock:
    """Seconds of this rank by phase: train, server, wait, communicate, evaluate, checkpoint."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.last: dict[str, float] = {}  # those of the round before the last reset
        self.heartbeat = Heartbeat()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start, before = perf_counter(), self.heartbeat.phase
        self.heartbeat.enter(phase)
        try:
            yield
        finally:
            self.seconds[phase] += perf_counter() - start
            self.heartbeat.enter(before)

    @contextmanager
    def rest(self, phase: str) -> Iterator[None]:
        """Time the block under this phase, less the time of other phases inside it."""
        start, before = perf_counter(), sum(self.seconds.values())
        try:
            yield
        finally:
            inside = sum(self.seconds.values()) - before
            self.seconds[phase] += max(0.0, perf_counter() - start - inside)

    def add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] += seconds

    def reset(self) -> dict[str, float]:
        """Return the seconds since the last reset, by phase, and reset them."""
        self.last, self.seconds = dict(self.seconds), defaultdict(float)
        return self.last
