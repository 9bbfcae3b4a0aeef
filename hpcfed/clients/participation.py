"""Who of a cohort reports in a round: absence, drop-outs and the deadline, decided before anything
is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hpcfed.core import rng

if TYPE_CHECKING:
    from hpcfed.clients.profiles import Profiles
    from hpcfed.config.parts import Local
    from hpcfed.config.system import System

Traffic = Callable[[int], tuple[int, int]]  # client -> bytes down and up of one round


@dataclass(frozen=True)
class Participation:
    """reports: clients in id order.

    partial: epochs (or steps) of those that do not do all.  lost: clients that received and worked,
    by the examples that they worked through, but dropped out, failed or would be too late.
    """

    reports: list[int] = field(default_factory=list)
    partial: dict[int, int] = field(default_factory=dict)
    lost: dict[int, float] = field(default_factory=dict)

    def without(self, failed: Container[int], draws: Draws) -> Participation:
        """The same, where these clients fail when all their work is done: they are lost too."""
        gone = {k: self.partial.get(k, draws.full) for k in self.reports if k in failed}
        lost = {k: float(draws.examples(k, amount)) for k, amount in gone.items()}
        return replace(
            self, reports=[k for k in self.reports if k not in gone], lost=self.lost | lost
        )


@dataclass(frozen=True)
class Draws:
    """What decides about a client's round or job, whose number is t; the same on all ranks."""

    seed: int
    system: System
    local: Local
    profiles: Profiles
    sizes: Sequence[int]  # training examples by client

    @property
    def full(self) -> int:
        """Epochs, or steps where the job counts in steps, of one round."""
        return self.local.steps or self.local.epochs

    def examples(self, k: int, amount: int) -> int:
        """Examples of so many epochs (or steps) of client k.

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
        """The share of its work after which the client is lost; None: it is not."""
        if not self.system.dropout:
            return None
        g = rng.stream(self.seed, "dropout", t, k)
        return g.random() if g.random() < self.system.dropout else None

    def participation(
        self, t: int, cohort: Sequence[int], partial: dict[int, int], keep: bool, traffic: Traffic
    ) -> Participation:
        """What becomes of a cohort whose clients can all be reached.

        partial: stragglers, and the epochs or steps they do.  keep: partial work counts; else
        stragglers are left out, and so is who does not meet the deadline.  The deadline reckons
        with local epochs or steps and the announced traffic; what a method computes beyond these
        takes time, but makes nobody late.
        """
        found = Participation(partial=dict(partial))
        for k in (k for k in cohort if keep or k not in partial):
            amount, share = partial.get(k, self.full), self.dropout(t, k)
            fits = amount if self.system.deadline is None else self.fits(k, amount, traffic(k))
            if share is None and fits < amount and keep and fits:
                found.partial[k] = amount = fits
            if share is not None or fits < amount:
                found.lost[k] = self.until(
                    k, self.examples(k, amount) * (1.0 if share is None else share), traffic
                )
            else:
                found.reports.append(k)
        return found

    def fits(self, k: int, amount: int, bytes_: tuple[int, int]) -> int:
        """How many of these epochs or steps client k completes, and reports, before the
        deadline.
        """
        times = (
            self.profiles.seconds(k, self.examples(k, a), *bytes_) for a in range(1, amount + 1)
        )
        return sum(seconds <= self.system.deadline for seconds in times)  # type: ignore[operator]  # asked where there is one

    def until(self, k: int, examples: float, traffic: Traffic) -> float:
        """As many of these examples as the deadline leaves time for after the download."""
        deadline = self.system.deadline
        return (
            examples
            if deadline is None
            else min(examples, self.profiles.fit(k, deadline, traffic(k)[0], 0))
        )

    def stragglers(self, t: int, cohort: list[int]) -> dict[int, int]:
        """The stragglers of round t and the epochs (or steps) they do: uniform in 1..all, as in
        FedProx, sec. 5.2.
        """
        g = rng.stream(self.seed, "stragglers", t)
        slow = g.choice(cohort, round(self.local.stragglers * len(cohort)), replace=False)
        return {int(k): int(g.integers(1, self.full + 1)) for k in sorted(slow)}
