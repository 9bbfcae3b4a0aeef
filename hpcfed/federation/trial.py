"""What a federation notes while it runs as a trial (`hpcfed.algorithms.trial`)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hpcfed.config.sections import Local


class Shortened(int):
    """One pass of a loop in a trial, which remembers how many passes the job has.

    passes: of the job.
    """

    passes: int

    def __new__(cls, passes: int) -> Shortened:
        one = super().__new__(cls, 1)
        one.passes = passes
        return one


def of_job(passes: int) -> int:
    """Return the number of passes that the job has in the place of those of a trial."""
    return passes.passes if isinstance(passes, Shortened) else passes


class Training(NamedTuple):
    """A training with noisy gradients, of a client with any number of examples.

    size: expected examples of a batch; 0: all of the client's, in one gradient.
    epochs: passes.  steps: gradients, instead of passes, unless 0.
    others: examples beside the client's own.
    """

    size: int
    epochs: int = 1
    steps: int = 0
    others: int = 0

    def releases(self, n: int) -> tuple[float, int]:
        """Return the probability of an example in a batch, and the number of noisy gradients.

        n: the client's examples.
        """
        if not self.size:
            return 1.0, 1
        n = max(1, n + self.others)
        return min(self.size, n) / n, self.steps or self.epochs * math.ceil(n / self.size)


@dataclass
class Trial:
    """Notes of a trial.

    local: local training of the job, whose loops the trial shortens.
    trainings: those of the round with noisy gradients, by client.
    streams: phase, round and client of their noise.
    """

    local: Local
    trainings: defaultdict[int, Counter[Training]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    streams: set[tuple[str, int, int]] = field(default_factory=set)

    def begin(self) -> None:
        """Begin a round."""
        self.trainings.clear()
        self.streams.clear()

    def note(self, k: int, training: Training) -> None:
        """Note a training of client k."""
        self.trainings[k][training] += 1
