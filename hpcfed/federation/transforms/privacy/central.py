"""Central differential privacy: the server adds Gaussian noise to the sum of clipped uploads.

McMahan et al., ICLR 2018, arXiv:1710.06963. A client's vector v_k is its update, or what it sends
if that is no new version of anything, with norm <= C. Its weight is u_k = 1, or min(n, cap); the
largest weight U is then 1, or cap. The server releases sum_k u_k v_k + N(0, (z C U)^2), divided by
a number that does not depend on who took part: the probability of a client times the sum of u over
all clients.

Where values have weights of their own, one for each class say, the sums of weight * value and of
the weights (times count_scale) are one vector, all of it with noise: a mean is the quotient of two
noisy sums, and its old value stays where the noisy weight is below the noise's standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcfed.clients.selection import count_groups
from hpcfed.core import rng
from hpcfed.core.averaging import Quotients
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params, Per
from hpcfed.federation.sealed import MeanRule, Sealed
from hpcfed.federation.transforms.bounded import (
    ROUNDED,
    Bound,
    BoundedMean,
    Form,
    default_scale,
    difference,
    is_weight,
    means_of,
    valid,
)
from hpcfed.federation.transforms.privacy import adaptive
from hpcfed.federation.transforms.privacy.noise import gaussian

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.config.privacy import Privacy
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.upload import Upload

BOUND = 4  # bytes of the bound, which adaptive clipping sends
BIT = "privacy.bit"  # part of an upload that tells whether the client's vector is within the bound


def probability(job: Job) -> float:
    """Return the expected share of the clients that are in a cohort."""
    if job.selection.by == "cyclic":
        b = count_groups(job.selection, job.participation)
        return min(1.0, b * job.participation) / b
    return job.participation if job.selection.by == "poisson" else job.cohort_size / job.clients


class CentralBound(Bound):
    """Clips uploads to the bound of the rule, and adds the bit of adaptive clipping."""

    def __init__(self, privacy: Privacy) -> None:
        assert privacy.clip is not None
        layers = privacy.clipping == "layers"
        super().__init__(privacy.clip, privacy.cap, layers, privacy.count_scale)
        self.adaptive = privacy.clipping == "adaptive"
        self.extra_download = BOUND if self.adaptive else 0

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        rule = fed.rule
        assert isinstance(rule, CentralMean)
        for mean in means_of(upload).values():
            check_weight(fed, client, mean.terms[0].weight)
        upload = self.complete(fed, difference(upload))
        squares = self.squares(fed, upload, rule.clip)
        clipped = self.shortened(fed, upload, squares, rule.clip)
        if not self.adaptive:
            return clipped
        bit = adaptive.bit(math.sqrt(math.fsum(squares.values())), rule.clip)
        return clipped.changed({BIT: torch.tensor(bit)})

    def bounded(self, fed: Federation, weight: float) -> float:
        """Return a weight in examples, or 1; the rule knows the cap."""
        return min(weight, self.cap) if self.cap else super().bounded(fed, weight)


def check_weight(fed: Federation, client: Client, weight: Any) -> None:
    """Raise ConfigError for a number as weight from which no denominator follows beforehand."""
    if not isinstance(weight, Params) and weight not in (1.0, client.n):
        raise ConfigError(
            f"{fed.job.algorithm.name}: a client's weight is {weight:g}, neither 1 nor its number "
            f"of examples, so that the sum of weights tells about its data\n  take a method with "
            f"algorithm.weighting, such as fedavg, or privacy.by = 'local'"
        )


class CentralMean(BoundedMean):
    """The mean with noise. Its state is the bound C of this round, which adaptive clipping changes.

    call: number of the next mean of this round.  uploads: of this rank's clients so far.
    senders: these clients.  bits: the sum of theirs.
    forms: of the means of a round, as the trial or a round had them first: for rounds in which
    nobody sends.
    """

    def __init__(self, privacy: Privacy, poisson: bool) -> None:
        assert privacy.clip is not None
        super().__init__(privacy.clip, privacy.cap or 1.0)
        self.hidden_by = f"privacy.by = {privacy.by!r}"
        self.instead = "privacy.by = 'local'"
        self.privacy, self.empty_cohorts = privacy, poisson
        self.begin()
        self.forms: dict[int, Form] = {}

    @property
    def adaptive(self) -> bool:
        return self.privacy.clipping == "adaptive"

    def open(self, fed: Federation) -> None:
        self.multiplier(fed)

    def begin(self) -> None:
        self.call, self.uploads, self.bits = 0, 0, 0.0
        self.senders: set[int] = set()

    def received(self, fed: Federation, k: int, upload: Upload) -> Upload:
        cohort = fed.participants.cohort
        if cohort is not None and len(cohort) < fed.K and k not in cohort:
            raise ConfigError(
                f"{self.hidden_by}: {fed.job.algorithm.name} also asks clients that are not in the "
                f"cohort, of which the account of privacy does not know; set participation = 1, or "
                f"take another method, such as fedavg"
            )
        self.uploads += 1
        self.senders.add(k)
        if BIT in upload.parts:
            self.bits += float(upload.parts[BIT])
            return upload.without(BIT)
        return upload

    def learn(self, trial: MeanRule) -> None:
        assert isinstance(trial, CentralMean)
        self.forms = trial.forms
        if not self.forms:
            raise ConfigError(
                f"{self.hidden_by} has no effect: no client sends anything that is averaged; set "
                f"privacy.by = 'none'"
            )

    def mean(
        self, fed: Federation, parts: list[tuple[int, Sealed]], keep: Params, per: Per
    ) -> Params:
        if {k for k, _ in parts} != self.senders:
            raise ConfigError(
                f"{self.hidden_by}: {fed.job.algorithm.name} averages over some of the clients of "
                f"a cohort only, which the account of privacy does not know; take a method whose "
                f"server averages over all, such as fedavg, or privacy.by = 'local'"
            )
        if any(part.opened for _, part in parts):
            raise ConfigError(
                f"{self.hidden_by}: {fed.job.algorithm.name} averages one upload twice, and the "
                f"account of privacy counts it once; take another method, such as fedavg, or "
                f"privacy.by = 'local'"
            )
        if not keep:
            return keep
        mean = self.average(fed, parts, keep, per)
        self.call += 1
        return Params({name: valid(name, value, keep[name]) for name, value in mean.items()})

    def average(
        self, fed: Federation, parts: list[tuple[int, Sealed]], keep: Params, per: Per
    ) -> Params:
        """Return the mean of uploads of all clients, each of them once; collective."""
        return super().mean(fed, parts, keep, per)

    def complete_form(self, fed: Federation, form: Form, per: Per) -> Form:
        """Return the form of a mean, also if nobody sends.

        Raises ConfigError for weights of which no account can be kept.
        """
        if Form.SENT in form:
            form |= self.forms.setdefault(self.call, form) & Form.ONES
        else:
            form = self.forms.get(self.call, form)
        if Form.TENSORS in form and per not in ("row", "tensor"):
            raise ConfigError(
                f"{self.hidden_by}: {fed.job.algorithm.name} weights each value by itself, so that "
                f"the weights are as many as the values and would take half of the bound; take "
                f"another method, such as fedavg, or privacy.by = 'local'"
            )
        return form

    def quotients(self, fed: Federation, keep: Params, per: Per, form: Form) -> Quotients:
        form = self.complete_form(fed, form, per)
        std = self.multiplier(fed) * self.clip * self.largest(form)

        def noise(i: int, start: int, n: int) -> np.ndarray:
            return std * self.noise(fed, i, start, n)

        return self.receiver(fed, keep, per, form, std, noise)

    def receiver(
        self,
        fed: Federation,
        keep: Params,
        per: Per,
        form: Form,
        std: float,
        noise: Callable[[int, int, int], np.ndarray],
    ) -> NoisyQuotients:
        """Return the target of the sum.  std, noise: as `NoisyQuotients` takes them."""
        divisor = None if Form.TENSORS in form else self.divisor(fed, form)
        quotients = NoisyQuotients(keep, per, Form.UPDATE in form, divisor, std, noise)
        n = sum(weights.size for weights in quotients.weights)
        quotients.count_scale = self.privacy.count_scale or default_scale(self.clip, n)
        return quotients

    def noise(self, fed: Federation, i: int, start: int, n: int) -> np.ndarray:
        """Return noise of multiplier 1 for n totals of array i from a flat position."""
        return gaussian(fed.seed, "privacy", fed.moment, self.call, i, start=start, n=n)

    def divisor(self, fed: Federation, form: Form) -> float:
        """Return the expected sum of the weights of a cohort."""
        cap = self.privacy.cap
        if cap is None or Form.ONES in form:
            return probability(fed.job) * fed.K
        return probability(fed.job) * float(np.minimum(fed.sizes, cap).sum())

    def largest(self, form: Form) -> float:
        """Return the largest weight of a client: 1, or the cap on its examples."""
        by_examples = not form & (Form.ONES | Form.TENSORS)
        return self.privacy.cap if self.privacy.cap and by_examples else 1.0

    def bounds(self, quotients: Quotients) -> np.ndarray:
        assert isinstance(quotients, NoisyQuotients)
        of_weights = max(1.0, self.largest_weight, self.clip / quotients.count_scale)
        of_values = self.clip * max(1.0, self.largest_weight)
        return np.where(is_weight(quotients), of_weights, of_values) * (1 + ROUNDED)

    def multiplier(self, fed: Federation) -> float:
        """Return the noise multiplier of the clients' vectors."""
        z = fed.noise_multiplier
        return adaptive.split_noise(z, self.bit_noise(fed)) if self.adaptive else z

    def bit_noise(self, fed: Federation) -> float:
        """Return the standard deviation of the noise on the sum of bits."""
        z = fed.noise_multiplier
        if self.privacy.bit_noise is not None:
            return self.privacy.bit_noise if z else 0.0
        return max(probability(fed.job) * fed.K / 20, z) if z else 0.0

    def report(self) -> float:
        return self.bits

    def share_of_cohorts(self, fed: Federation) -> float:
        return probability(fed.job)

    def close(self, fed: Federation, uploads: int, reports: Collection[float]) -> None:
        """Adapt the bound to the round."""
        if not self.adaptive:
            return
        # the noise of as many bits as a client has sent, each of which is a release
        std = self.bit_noise(fed) * math.sqrt(max(1, uploads))
        bits = math.fsum(reports)
        bits += std * rng.stream(fed.seed, "privacy", "bit", fed.t).standard_normal()
        m, p = probability(fed.job) * fed.K * max(1, uploads), self.privacy
        self.clip = adaptive.adapted(self.clip, bits, m, p.clip_rate, p.quantile)

    def columns(self) -> dict[str, float]:
        """Return what a round's record has of the rule."""
        return {"rounds/clip": self.clip} if self.adaptive else {}

    def fresh(self) -> CentralMean:
        rule = super().fresh()
        assert isinstance(rule, CentralMean)
        rule.forms = {}
        rule.begin()
        return rule

    def to_tree(self) -> dict[str, Any]:
        forms = [(call, int(form)) for call, form in sorted(self.forms.items())]
        return {"clip": self.clip, "forms": np.array(forms, dtype=np.int64).reshape(-1, 2)}

    def from_tree(self, tree: dict[str, Any]) -> None:
        self.clip = float(tree["clip"])
        self.forms = {call: Form(form) for call, form in np.array(tree["forms"]).tolist()}


class NoisyQuotients(Quotients):
    """Adds noise to totals, and divides them by a number known beforehand, or by noisy weights.

    updates: whether totals are changes of the old values.
    divisor: that number; None: the weights are sums of tensors and get noise.
    std: standard deviation of the noise.
    noise: (array, flat position, n) -> noise.
    count_scale: factor of noisy weights in the length of a client's vector.
    """

    def __init__(
        self,
        keep: Params,
        per: Per,
        updates: bool,
        divisor: float | None,
        std: float,
        noise: Callable[[int, int, int], np.ndarray],
    ) -> None:
        super().__init__(keep, per)
        self.updates, self.divisor, self.noise = updates, divisor, noise
        self.std, self.count_scale = std, 1.0

    def finish(self, i: int, start: int, total: np.ndarray) -> None:
        if i < self.n_first:
            if self.divisor is None and self.std:
                total += self.noise(i, start, len(total)) / self.count_scale
            return
        if self.std:
            total += self.noise(i, start, len(total))
        old = self.old(i, start, len(total))
        if self.divisor is not None:
            total /= self.divisor
            if self.updates:
                total += old
            return
        weight = np.broadcast_to(self.weight(i, start, len(total)), total.shape)
        reliable = weight > self.std / self.count_scale
        np.divide(total, weight, out=total, where=reliable)
        if self.updates:
            total += old
        np.copyto(total, old, where=~reliable)
