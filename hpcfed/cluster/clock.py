"""Where a rank's time goes, by phase."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Clock:
    """Seconds of this rank by phase: train, wait, communicate, evaluate, checkpoint."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += perf_counter() - start

    def add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] += seconds

    def reset(self) -> dict[str, float]:
        """The seconds since the last reset."""
        seconds, self.seconds = dict(self.seconds), defaultdict(float)
        return seconds
