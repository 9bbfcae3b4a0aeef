"""Participation in a round: absence, drop-outs, stragglers and the deadline.

All of it is decided before anything is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hpcfed.core import rng

if TYPE_CHECKING:
    import numpy as np

    from hpcfed.clients.profiles import Profiles
    from hpcfed.config.sections import Local
    from hpcfed.config.system import System

Traffic = Callable[[int], tuple[int, int]]  # client -> bytes down and up of one round


@dataclass(frozen=True)
class Outcome:
    """What becomes of a cohort in one round.

    reports: clients that report, in id order.
    partial: epochs (or steps) of the clients that do less than all.
    lost: examples processed by each client that received the model and trained, but dropped out,
    failed or would miss the deadline.
    """

    reports: list[int] = field(default_factory=list)
    partial: dict[int, int] = field(default_factory=dict)
    lost: dict[int, float] = field(default_factory=dict)

    def without(self, failed: Container[int], draws: Draws) -> Outcome:
        """Return the outcome if these clients do all their work and then fail."""
        gone = {k: self.partial.get(k, draws.full) for k in self.reports if k in failed}
        lost = {k: float(draws.examples(k, amount)) for k, amount in gone.items()}
        return replace(
            self, reports=[k for k in self.reports if k not in gone], lost=self.lost | lost
        )


@dataclass(frozen=True)
class Draws:
    """Random draws that decide the participation of clients; the same on all ranks.

    In its methods t is the number of a round or, in virtual time, of a client's job.
    """

    seed: int
    system: System
    local: Local
    profiles: Profiles
    sizes: Sequence[int] | np.ndarray  # training examples by client

    @property
    def full(self) -> int:
        """Epochs, or steps where the job counts in steps, of one round."""
        return self.local.steps or self.local.epochs

    def examples(self, k: int, amount: int) -> int:
        """Return the number of examples in `amount` epochs (or steps) of client k.

        The last batch of an epoch may be smaller.
        """
        n = self.sizes[k]
        if self.local.steps is None:
            return amount * n
        epochs, rest = divmod(amount, math.ceil(n / self.local.batch) or 1)
        return epochs * n + min(rest * self.local.batch, n)

    def reachable(self, t: int, k: int) -> bool:
        share = self.profiles.availability[k]
        return share >= 1 or rng.stream(self.seed, "availability", t, k).random() < share

    def dropout(self, t: int, k: int) -> float | None:
        """Return the share of its work after which the client drops out, or None if it does not."""
        if not self.system.dropout:
            return None
        g = rng.stream(self.seed, "dropout", t, k)
        return g.random() if g.random() < self.system.dropout else None

    def outcome(
        self, t: int, cohort: Sequence[int], partial: dict[int, int], keep: bool, traffic: Traffic
    ) -> Outcome:
        """Return the outcome for a cohort whose clients are all reachable.

        partial: the epochs or steps of each straggler.
        keep: partial work counts. Otherwise stragglers, and clients that miss the deadline, are
        left out.
        The deadline takes local epochs or steps and the announced traffic into account. What a
        method computes beyond these takes time, but makes no client late.
        """
        result, full = Outcome(partial=dict(partial)), self.full
        for k in (k for k in cohort if keep or k not in partial):
            amount, share = partial.get(k, full), self.dropout(t, k)
            fits = amount if self.system.deadline is None else self.fits(k, amount, traffic(k))
            if share is None and fits < amount and keep and fits:
                result.partial[k] = amount = fits
            if share is not None or fits < amount:
                result.lost[k] = self.until(
                    k, self.examples(k, amount) * (1.0 if share is None else share), traffic
                )
            else:
                result.reports.append(k)
        return result

    def least_seconds(self, k: int, keep: bool, bytes_: tuple[int, int]) -> float:
        """Return the virtual seconds without which client k cannot report.

        keep: partial work counts, so that one epoch (or step) is enough; otherwise all its work.
        bytes_: announced, down and up.
        """
        return self.profiles.seconds(k, self.examples(k, 1 if keep else self.full), *bytes_)

    def fits(self, k: int, amount: int, bytes_: tuple[int, int]) -> int:
        """Return how many of these epochs or steps client k completes before the deadline.

        The time includes download and upload.
        """
        times = (
            self.profiles.seconds(k, self.examples(k, a), *bytes_) for a in range(1, amount + 1)
        )
        return sum(seconds <= self.system.deadline for seconds in times)  # type: ignore[operator]  # asked where there is one

    def until(self, k: int, examples: float, traffic: Traffic) -> float:
        """Return how many of these examples the deadline leaves time for after the download."""
        deadline = self.system.deadline
        return (
            examples
            if deadline is None
            else min(examples, self.profiles.fit(k, deadline, traffic(k)[0], 0))
        )

    def stragglers(self, t: int, cohort: list[int]) -> dict[int, int]:
        """Draw the stragglers of round t and their epochs (or steps), uniform in 1..all.

        Li et al., FedProx, arXiv:1812.06127, sec. 5.2.
        """
        g = rng.stream(self.seed, "stragglers", t)
        slow = g.choice(cohort, round(self.local.stragglers * len(cohort)), replace=False)
        return {int(k): int(g.integers(1, self.full + 1)) for k in sorted(slow)}
