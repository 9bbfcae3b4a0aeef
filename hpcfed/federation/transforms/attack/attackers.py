"""Who attacks, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcfed.core import rng
from hpcfed.federation.upload import Transform

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation


def attackers(job: Job) -> frozenset[int]:
    """Return the clients that attack, the same in all rounds."""
    attack = job.attack
    if attack.by == "none":
        return frozenset()
    if attack.clients:
        return frozenset(attack.clients)
    g = rng.stream(job.seed, "attackers")
    return frozenset(g.choice(job.clients, attack.number(job.clients), replace=False).tolist())


class Attacking(Transform):
    """What all attacks have in common.

    clients: the attackers, by id.
    """

    keeps_state = False
    targeted = False  # whether it has a success of its own, on examples of `of_success`

    def __init__(self, job: Job) -> None:
        self.settings, self.clients = job.attack, attackers(job)

    def check(self, fed: Federation) -> None:
        """Raise ConfigError if the attack cannot be made on this federation's data."""

    def begin(self, fed: Federation) -> None:
        """Change what the attack changes before the first round."""

    def of_success(self, fed: Federation, client: Client | None = None) -> Shard:
        """Return the examples on which the attack succeeds if a model says their labels: those of a
        client, or this rank's part of all.
        """
        raise NotImplementedError

    def acts(self, fed: Federation, k: int) -> bool:
        """Return whether client k attacks in this round."""
        return k in self.clients and fed.t + 1 >= self.settings.start

    def scale(self, default: float) -> float:
        """Return the strength that the job sets, or the default of the attack."""
        return default if self.settings.scale is None else self.settings.scale

    def of_trial(self) -> Transform:
        """Return a transform that does nothing: an attack changes values, and no bytes."""
        return Transform()
