"""The account of DP-SGD: what each client's noisy gradients have cost its examples.

A release is a gradient of one Poisson batch. Neighbours are data sets of one client, of which one
has an example more. So each client has an epsilon of its own, by the numbers of its gradients and
the probability q of an example in the batch of each; that of a run is the largest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpcfed.core.errors import ConfigError
from hpcfed.federation.transforms.privacy.account import Account
from hpcfed.federation.transforms.privacy.accounting import round_up

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.federation.federation import Federation

STEP = 1.0001  # factor by which noise grows until all clients are within the budget
Parts = tuple[tuple[float, int], ...]  # pairs of q and a number of gradients, in one order


class Gradients(Counter[float]):
    """Numbers of a client's noisy gradients, by the probability q of an example in their batch."""

    def __add__(self, other: Counter[float]) -> Gradients:  # type: ignore[override]
        return Gradients(super().__add__(other))

    @property
    def parts(self) -> Parts:
        return tuple(sorted((q, n) for q, n in self.items() if n))


class Schedule(Protocol):
    """What is known of noisy gradients before they are computed (`engine.noisy_gradients`)."""

    def of_round(self, t: int) -> dict[int, Gradients]:
        """Return the noisy gradients of the clients that may train in round t."""

    def once(self, k: int) -> Gradients:
        """Return the noisy gradients of client k before its first round."""

    @property
    def prepares(self) -> bool:
        """Whether clients train once before their first round, or in round 0."""

    def total(self) -> dict[int, Gradients]:
        """Return the noisy gradients of each client in all rounds."""


def costliest(clients: Iterable[Gradients]) -> list[Parts]:
    """Return the gradients of clients that no other client exceeds, presumably in order of cost.

    For small epsilon the cost grows by q^2 times the number of gradients.
    """
    worst: list[Parts] = []
    every = {gradients.parts for gradients in clients if gradients.parts}
    for parts in sorted(every, key=lambda parts: sum(q * q * n for q, n in parts), reverse=True):
        if not any(exceed(others, parts) for others in worst):
            worst.append(parts)
    return worst


def exceed(one: Parts, other: Parts) -> bool:
    """Return whether gradients cost at least as much as others, whatever the noise.

    For each probability there are as many of at least this probability.
    """
    return all(
        sum(n for p, n in one if p >= q) >= sum(n for p, n in other if p >= q) for q, _ in other
    )


class ExampleAccount(Account):
    """The account of all clients' gradients.

    gradients: of each client so far.  schedule: those to come.  t: number of rounds done.
    """

    def __init__(self, fed: Federation) -> None:
        super().__init__(fed.job)
        self.accountant = replace(self.accountant, cohorts="poisson")  # of examples
        self.tallies, self.K = fed.tallies, fed.K
        self.gradients: dict[int, Gradients] = {}
        self.t = 0
        self.schedule: Schedule | None = None

    def set_noise(self, times: int) -> None:
        """Find the noise with which the client that costs most stays within the budget.

        Raises ConfigError if no client needs any.
        """
        assert self.schedule
        clients, accountant = costliest(self.schedule.total().values()), self.accountant
        if not clients:
            raise ConfigError(
                "privacy.by = 'examples' has no effect: no client computes gradients of its "
                "examples; set privacy.by = 'none'"
            )
        worst, target = clients[0], self.budget if self.target else None
        if target is not None:
            self.z = accountant.calibrate(target, *worst)
        while True:
            self.accountant = accountant.for_run(self.z, *worst)
            epsilon, worst = self.largest(clients)
            if target is None or epsilon <= target:
                return
            self.z = max(round_up(self.z * STEP), accountant.calibrate(target, *worst))

    def note(self, comm: Comm, cohort: Collection[int], each: int) -> None:
        ours = {k: tally.releases for k, tally in self.tallies.items() if tally.releases}
        for k, releases in comm.gather(ours).items():
            gradients = self.gradients.setdefault(k, Gradients())
            for q, number in releases:
                gradients[q] += number
        self.t += 1

    def cost(self, more: int) -> float:
        clients = self.with_next_round() if more else self.gradients
        return self.largest(costliest(clients.values()))[0]

    def with_next_round(self) -> dict[int, Gradients]:
        """Return the gradients of each client after the next round, at most."""
        assert self.schedule
        coming = self.schedule.of_round(self.t)
        if self.schedule.prepares:
            for k in range(self.K) if self.t == 0 else [*coming]:
                if k not in self.gradients:
                    coming[k] = coming.get(k, Gradients()) + self.schedule.once(k)
        clients = dict(self.gradients)
        for k, gradients in coming.items():
            clients[k] = clients.get(k, Gradients()) + gradients
        return clients

    def largest(self, clients: Sequence[Parts]) -> tuple[float, Parts]:
        """Return the largest epsilon of clients, and the gradients of the client that has it.

        A client whose bound by Renyi divergences is no larger than another's epsilon is left out.
        """
        if len(clients) == 1:
            return self.accountant.cost(self.z, *clients[0]), clients[0]
        quick = replace(self.accountant, by="rdp")
        bounds = sorted(((quick.cost(self.z, *parts), parts) for parts in clients), reverse=True)
        best: tuple[float, Parts] = 0.0, ()
        if self.accountant.by == "rdp":
            return bounds[0] if bounds else best
        for bound, parts in bounds:
            if bound <= best[0]:
                break
            best = max(best, (self.accountant.cost(self.z, *parts), parts))
        return best

    def facts(self) -> dict[str, Any]:
        """Return what has to be said with each epsilon, for readers of results."""
        return super().facts() | {"neighbours": "a client has one example more or less"}

    def _cohorts(self) -> str:
        return (
            "counted by the client that costs most; batches are Poisson samples of its examples, "
            "and nobody learns who is in them"
        )

    def to_tree(self) -> dict[str, Any]:
        """Return the part of a checkpoint that concerns the account."""
        rows = [(k, q, n) for k, some in sorted(self.gradients.items()) for q, n in some.parts]
        table = np.array(rows, dtype=float).reshape(-1, 3)
        return super().to_tree() | {"gradients": table, "rounds_done": self.t}

    def from_tree(self, tree: dict[str, Any]) -> None:
        """Restore what `to_tree` returned."""
        super().from_tree(tree)
        self.t, self.gradients = int(tree["rounds_done"]), {}
        for k, q, n in np.array(tree["gradients"]).tolist():
            self.gradients.setdefault(int(k), Gradients())[q] = int(n)
