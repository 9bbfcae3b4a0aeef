"""What a job makes of uploads and downloads: each mechanism is one file of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcfed.federation.transforms.attack import install_attack
from hpcfed.federation.transforms.bounded import BoundedMean
from hpcfed.federation.transforms.compression import install_compression
from hpcfed.federation.transforms.compression.vote import MajorityVote
from hpcfed.federation.transforms.defence.robust_mean import RobustMean
from hpcfed.federation.transforms.privacy.account import Account
from hpcfed.federation.transforms.privacy.central import CentralBound, CentralMean
from hpcfed.federation.transforms.privacy.correlated import CorrelatedAccount, CorrelatedMean
from hpcfed.federation.transforms.privacy.distributed import (
    DistributedAccount,
    DistributedMean,
    Shares,
)
from hpcfed.federation.transforms.privacy.examples import ExampleAccount
from hpcfed.federation.transforms.privacy.local import LocalNoise
from hpcfed.federation.transforms.secure.sums import Envelope, SecureSums

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation


def install(fed: Federation) -> None:
    """Give a federation the transforms of its job, in their order, and the rule for means.

    The order: attacks, compression, clipping, a client's noise, masks; at the server the sum, its
    noise, and the denominator.
    """
    install_attack(fed)
    install_compression(fed)
    job, privacy = fed.job, fed.job.privacy
    if privacy.by == "central":
        fed.transforms.append(CentralBound(privacy))
        fed.rule = CentralMean(privacy, job.selection.by == "poisson")
    if privacy.by == "local":
        fed.transforms.append(LocalNoise(privacy))
    if privacy.by == "distributed":
        fed.transforms.append(Shares(privacy))
        fed.rule = DistributedMean(privacy, job.selection.by == "poisson")
    if privacy.by == "correlated":
        fed.transforms.append(CentralBound(privacy))
        fed.rule = CorrelatedMean(job)
    if privacy.has_noise:
        fed.account = make_account(fed)
    if job.secure.by != "none":
        install_secure_sums(fed)
    if job.defence.by != "none":
        fed.rule = RobustMean(job.defence)


def make_account(fed: Federation) -> Account:
    """Return the account of the noise of a federation's job."""
    job, rule = fed.job, fed.rule
    if job.privacy.by == "examples":
        return ExampleAccount(fed)
    if isinstance(rule, DistributedMean):
        return DistributedAccount(job, rule)
    return CorrelatedAccount(job) if isinstance(rule, CorrelatedMean) else Account(job)


def install_secure_sums(fed: Federation) -> None:
    """Let the federation add uploads up by a secure sum, after all other transforms."""
    secure = fed.job.secure
    rule = fed.rule
    if isinstance(rule, MajorityVote):
        fed.transforms.append(Envelope(None, 1.0))
        rule.mask(SecureSums(secure, fed.cohort_size))
        return
    if not isinstance(rule, BoundedMean):
        assert secure.bound is not None  # `check_secure`
        rule = fed.rule = BoundedMean(secure.bound, secure.largest_weight or fed.largest)
        rule.hidden_by, rule.instead = f"secure.by = {secure.by!r}", "secure.by = 'none'"
        fed.transforms.append(Envelope(secure.bound, rule.largest_weight))
    else:
        fed.transforms.append(Envelope(None, rule.largest_weight))
    rule.secure = SecureSums(secure, fed.cohort_size)
