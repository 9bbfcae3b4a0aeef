"""The account of a run: what its releases cost, and whether the budget allows another round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.core.errors import ConfigError
from hpcfed.federation.transforms.privacy.accounting import Accountant, Ledger
from hpcfed.federation.transforms.privacy.central import probability

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job


RELATIONS = {  # what two federations that epsilon compares differ in
    "add-remove": "one client takes part or does not",
    "replace": "one client has its data or any other",
    "zero-out": "one client has its data or none",
}


class Account:
    """The releases of a run and their cost, the same on all ranks.

    Rank 0 computes, for the last bits depend on the processor.

    z: noise multiplier.  ledger: the releases (central).  turns: uploads of each client (local).
    each: releases, or uploads of a client, in one round.
    spent: epsilon of all rounds so far.  ahead: with the next round.
    """

    def __init__(self, job: Job) -> None:
        privacy = job.privacy
        self.by, self.budget = privacy.by, privacy.epsilon
        self.z, self.target = privacy.noise or 0.0, privacy.noise is None
        self.q = 1.0 if self.by == "local" else probability(job)
        self.accountant = Accountant(
            privacy.delta,
            privacy.accountant,
            privacy.neighbours if self.by == "central" else "add-remove",  # its noise is for 2 C
            "poisson" if job.selection.by in ("poisson", "cyclic") else "fixed",
            job.clients,
        )
        self.ledger, self.turns, self.each = Ledger(), Counter[int](), 1
        self.spent, self.ahead = 0.0, 0.0

    def open(self, comm: Comm, each: int, turns: int) -> None:
        """Find the noise, before the first round; collective.

        each: releases in one round.  turns: rounds of the run that may cost the same client.
        Raises ConfigError, on all ranks, if no noise reaches the target, or if one round exceeds
        the budget.
        """
        self.each = each
        result: Any = comm.bcast(self._begin(turns) if comm.rank == 0 else None)
        if isinstance(result, str):
            raise ConfigError(result)
        self.z, self.ahead = result
        if self.budget is not None and self.ahead > self.budget:
            raise ConfigError(
                f"privacy.epsilon = {self.budget:g}: with privacy.noise = {self.z:g} the first "
                f"round costs {self.ahead:.4g} already; set more noise, or leave privacy.noise out "
                f"and it is computed"
            )

    def _begin(self, turns: int) -> tuple[float, float] | str:
        """Return the noise multiplier and the cost of the first round, or why there are none."""
        try:
            self.set_noise(self.each * self.most_releases(turns))
            return self.z, self.cost(self.each)
        except ValueError as error:
            return f"privacy.epsilon = {self.budget:g}: {error}"
        except ConfigError as error:  # a package is missing
            return str(error)

    def set_noise(self, times: int) -> None:
        """Find the noise, and how finely to count, for a number of releases. Raises ValueError."""
        if self.target:
            self.z = self.calibrate(times)
        self.accountant = self.accountant.for_run(self.z, (self.q, times))

    def most_releases(self, turns: int) -> int:
        """Return the number of rounds that count.  turns: as in `open`."""
        return turns

    def calibrate(self, times: int) -> float:
        """Return the noise with which `times` releases cost the budget. Raises ValueError."""
        assert self.budget is not None
        return self.accountant.calibrate(self.budget, (self.q, times))

    def close(self, comm: Comm, cohort: Collection[int], each: int) -> float:
        """Note the releases of a round, and return epsilon so far; collective.

        cohort: the clients that were to send.  each: most uploads of one client.
        Raises ConfigError, on all ranks, if a round has cost more than was expected, and more than
        the budget allows.
        """
        # who takes part is secret, so a round in which nobody did costs as much as another
        each = each or self.each
        self.each = max(self.each, each)
        self.note(comm, cohort, each)
        costs = [self.cost(0), self.cost(self.each)] if comm.rank == 0 else []
        self.spent, self.ahead = comm.bcast(costs)
        if self.budget is not None and self.spent > self.budget:
            raise ConfigError(
                f"privacy.epsilon = {self.budget:g}: the round has cost more than expected, so "
                f"that epsilon would be {self.spent:.4g}; it is not recorded\n  {self.excess}"
            )
        return self.spent

    @property
    def excess(self) -> str:
        """Why a round may cost more than expected, and what to do."""
        return (
            f"the method sends or trains more in some rounds than in others; set privacy.noise to "
            f"a value above {self.z:g}"
        )

    def note(self, comm: Comm, cohort: Collection[int], each: int) -> None:
        """Note the releases of a round; collective."""
        if self.by == "local":
            self.turns.update(dict.fromkeys(cohort, each))
        else:
            self.ledger.add(self.z, self.q, each)

    def cost(self, more: int) -> float:
        """Return epsilon with the further releases of another round."""
        if self.by != "local":
            return self.accountant.epsilon(self.ledger.then(self.z, self.q, more))
        times = max(self.turns.values(), default=0) + more
        return self.accountant.cost(self.z, (1.0, times))

    @property
    def reason(self) -> str:
        """Why the run ends; "" if the budget allows another round."""
        if self.budget is None or self.ahead <= self.budget:
            return ""
        return (
            f"the privacy budget is spent: epsilon is {self.spent:.4g}, and another round would "
            f"make it {self.ahead:.4g}, above privacy.epsilon = {self.budget:g}"
        )

    @property
    def may_end(self) -> bool:
        """Whether the coming round may be the last: another one costs no more than it."""
        if self.budget is None or self.target:
            return False
        return self.ahead + (self.ahead - self.spent) > self.budget

    def facts(self) -> dict[str, Any]:
        """Return what has to be said with each epsilon, for readers of results."""
        return {
            "by": self.by,
            "noise": self.z,
            "delta": self.accountant.delta,
            "accountant": self.accountant.by,
            "neighbours": RELATIONS[
                # of local noise: it is for 2 C; of shares of noise: who is absent brings none
                {"local": "replace", "distributed": "zero-out"}.get(
                    self.by, self.accountant.neighbours
                )
            ],
            "cohorts": self._cohorts(),
        }

    def _cohorts(self) -> str:
        """Return what the account assumes about cohorts."""
        if self.by == "local":
            return "counted by the client that sends most often; who sends is no secret"
        if self.q == 1:
            return "all clients take part in each round"
        if self.accountant.cohorts == "poisson":
            return (
                f"Poisson cohorts, each client with probability {self.q:g}; nobody learns who is in"
            )
        fixed = "cohorts of a fixed size are drawn without replacement, and nobody learns who is in"
        if self.accountant.by == "rdp":
            return fixed
        return f"{fixed}; counted as Poisson cohorts with half of the noise, without a proof"

    def to_tree(self) -> dict[str, Any]:
        """Return the part of a checkpoint that concerns the account."""
        return {
            "z": self.z,
            "each": self.each,
            "costs": np.array([self.spent, self.ahead]),
            "ledger": self.ledger.to_tree(),
            "turns": np.array(sorted(self.turns.items()), dtype=np.int64).reshape(-1, 2),
        }

    def from_tree(self, tree: dict[str, Any]) -> None:
        """Restore what `to_tree` returned."""
        self.z, self.each = float(tree["z"]), int(tree["each"])
        self.spent, self.ahead = np.array(tree["costs"]).tolist()
        self.ledger = Ledger.from_tree(tree["ledger"])
        self.turns = Counter(dict(np.array(tree["turns"]).tolist()))
