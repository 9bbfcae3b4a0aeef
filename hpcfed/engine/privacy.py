"""The account of a run's privacy, opened before its first round, and what is said of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hpcfed.algorithms.trial import measure
from hpcfed.core.errors import ConfigError, everywhere
from hpcfed.engine.noisy_gradients import NoisyGradients
from hpcfed.federation.transforms.defence.robust_mean import RobustMean
from hpcfed.federation.transforms.privacy.examples import ExampleAccount

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation


def open_account(fed: Federation) -> None:
    """Find the noise of the job, and open its account; collective.

    Raises ConfigError, on all ranks, for a method of which no account can be kept.
    """
    privacy = fed.job.privacy
    # bounded uploads need shapes that a trial learns, also without noise
    if not (fed.rule or fed.account or privacy.bounds):
        return
    try:
        measured = measure(fed)
        if privacy.sampling:
            check_cohorts(fed)
        if fed.account:
            if isinstance(fed.account, ExampleAccount):
                fed.account.schedule = NoisyGradients(fed)
            # other noise costs all clients alike in each round, or is counted by example
            turns = busiest(fed) if privacy.by == "local" else fed.job.rounds
            fed.account.open(fed.comm, max(1, measured.uploads), turns)
        if fed.rule:
            fed.rule.open(fed)
        if isinstance(fed.rule, RobustMean):
            fed.rule.say_what_it_covers(fed, measured.uploaded)
    except ConfigError as error:
        raise everywhere(error) from None


def check_cohorts(fed: Federation) -> None:
    """Raise ConfigError if a method does not take the cohorts that the job's selection draws."""
    method = fed.job.algorithm
    for t in range(fed.job.rounds):
        if method.cohort(fed, t) != fed.sample(t):
            raise ConfigError(
                f"privacy.by = {fed.job.privacy.by!r}: {method.name} chooses some of its cohorts "
                f"itself (round {t + 1}), and the account of privacy needs those of selection.by; "
                f"take another method, or privacy.by = 'local'"
            )


def busiest(fed: Federation) -> int:
    """Return the largest number of rounds in which a client takes part, as far as it is known."""
    method = fed.job.algorithm
    if fed.choice.learns or fed.cohort_size == fed.K or not hasattr(method, "cohort"):
        return fed.job.rounds
    turns = Counter(k for t in range(fed.job.rounds) for k in method.cohort(fed, t))
    return max(turns.values(), default=1)
