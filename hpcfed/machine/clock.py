"""Timing of a rank by phase."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from hpcfed.machine.energy import OTHER, Meter
from hpcfed.machine.heartbeat import Heartbeat


class Clock:
    """Seconds of this rank by phase: train, server, wait, communicate, evaluate, checkpoint.

    meter: reads the energy of each phase; None: nothing is measured.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.last: dict[str, float] = {}  # those of the round before the last reset
        self.heartbeat = Heartbeat()
        self.meter: Meter | None = None
        self._phase = OTHER  # the one that is charged with energy

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start, before = perf_counter(), self.heartbeat.phase
        self.heartbeat.enter(phase)
        try:
            with self.charged(phase):
                yield
        finally:
            self.seconds[phase] += perf_counter() - start
            self.heartbeat.enter(before)

    @contextmanager
    def rest(self, phase: str) -> Iterator[None]:
        """Time the block under this phase, less the time of other phases inside it."""
        start, before = perf_counter(), sum(self.seconds.values())
        try:
            with self.charged(phase):
                yield
        finally:
            inside = sum(self.seconds.values()) - before
            self.seconds[phase] += max(0.0, perf_counter() - start - inside)

    @contextmanager
    def charged(self, phase: str) -> Iterator[None]:
        """Charge the phase with the energy of the block, less that of other phases inside it."""
        outer = self._phase
        self._begin(phase)
        try:
            yield
        finally:
            self._begin(outer)

    def _begin(self, phase: str) -> None:
        """Charge the present phase with its energy, and begin another one."""
        if self.meter:
            self.meter.charge(self._phase)
        self._phase = phase

    def joules(self) -> dict[str, float]:
        """Return the joules since the last call, by phase; {} if this rank reads no counter."""
        if not (self.meter and self.meter.counters):
            return {}
        self.meter.charge(self._phase)
        return self.meter.reset()

    def add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] += seconds

    def reset(self) -> dict[str, float]:
        """Return the seconds since the last reset, by phase, and reset them."""
        self.last, self.seconds = dict(self.seconds), defaultdict(float)
        return self.last
