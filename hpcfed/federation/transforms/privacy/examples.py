"""The account of DP-SGD: what each client's noisy gradients have cost its examples.

A release is a gradient of one Poisson batch. Neighbours are data sets of one client, of which one
has an example more. So each client has an epsilon of its own, by the probability q = B / n of an
example in a batch and the number of its gradients; that of a run is the largest. A client whose
phases have different q counts all with the largest.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.federation.transforms.privacy.account import Account
from hpcfed.federation.transforms.privacy.accounting import Release, round_up

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.federation.federation import Federation

STEP = 1.0001  # factor by which noise grows until all clients are within the budget
ALL = 3  # pairs of q and a number of gradients whose epsilons are all computed


class ExampleAccount(Account):
    """The account of all clients' gradients.

    releases: [K], of each client so far.  sampled: [K], largest q of each.
    latest: [K], largest number of gradients of each in one round.
    expected: pairs of q and the number of gradients of the run, as far as it is known.
    """

    def __init__(self, fed: Federation) -> None:
        super().__init__(fed.job)
        self.accountant = replace(self.accountant, cohorts="poisson")  # of examples
        self.tallies = fed.tallies
        sizes, local = np.asarray(fed.sizes), fed.job.local
        self.releases = np.zeros(len(sizes), np.int64)
        self.sampled = np.minimum(1.0, local.batch / sizes)
        steps = local.epochs * np.ceil(sizes / local.batch)
        self.expected: list[tuple[float, int]] = []
        self.latest = np.full(len(sizes), local.steps) if local.steps else steps.astype(np.int64)

    def open(self, comm: Comm, each: int, turns: int) -> None:
        """Open the account.  each: trainings of a client in one round."""
        self.latest *= each
        self.expected = self.candidates(self.latest * turns)
        self.q, _ = self.expected[-1]
        super().open(comm, 1, turns)

    def most_releases(self, turns: int) -> int:
        return self.expected[-1][1]

    def calibrate(self, times: int) -> float:
        """Return the noise with which the client that costs most stays within the budget."""
        assert self.budget is not None
        z = max(self.accountant.calibrate(self.budget, q, n) for q, n in self.expected)
        accountant = self.accountant.for_run(z, self.q, times)
        while max(accountant.epsilon([Release(z, q, n)]) for q, n in self.expected) > self.budget:
            z = round_up(z * STEP)
        return z

    def note(self, comm: Comm, cohort: Collection[int], each: int) -> None:
        ours = {k: [tally.releases, tally.sampled] for k, tally in self.tallies.items()}
        for k, (number, q) in comm.gather(ours).items():
            if k < len(self.releases) and number:
                self.releases[k] += int(number)
                self.latest[k] = max(self.latest[k], int(number))
                self.sampled[k] = max(self.sampled[k], float(q))

    def cost(self, more: int) -> float:
        return self.epsilon(self.releases + (self.latest if more else 0))

    def epsilon(self, releases: np.ndarray) -> float:
        """Return the largest epsilon of a client.  releases: [K]."""
        return max(
            (
                self.accountant.epsilon([Release(self.z, q, n)])
                for q, n in self.candidates(releases)
            ),
            default=0.0,
        )

    def candidates(self, releases: np.ndarray) -> list[tuple[float, int]]:
        """Return the q and numbers of gradients of which one costs most.

        These are the pairs that no other exceeds in both. Of more than ALL of them it is those with
        the largest q^2 times number, by which epsilon grows while it is small.
        """
        pairs, best = [], 0
        active = releases > 0
        values = zip(self.sampled[active].tolist(), releases[active].tolist(), strict=True)
        for q, n in sorted({*values}, reverse=True):
            if n > best:
                pairs.append((q, n))
                best = n
        return sorted(pairs, key=lambda pair: pair[0] ** 2 * pair[1])[-ALL:]

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
        arrays = {"releases": self.releases, "latest": self.latest, "sampled": self.sampled}
        return super().to_tree() | {name: array.copy() for name, array in arrays.items()}

    def from_tree(self, tree: dict[str, Any]) -> None:
        """Restore what `to_tree` returned."""
        super().from_tree(tree)
        self.releases = np.array(tree["releases"])
        self.latest, self.sampled = np.array(tree["latest"]), np.array(tree["sampled"])
