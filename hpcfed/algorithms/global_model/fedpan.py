"""FedPAN: FedAvg of networks whose units know their position, so that none of them can take
another's place.

Li et al. (Federated Learning with Position-Aware Neurons), CVPR 2022, arXiv:2203.14666, section 4.
After each convolution and linear layer (after what normalises it, where there is something) and
before the ReLU a constant is added to the n units, or multiplies them: h + e or h (1 + e) with
e_j = A sin(2 pi T j / n), j = 0..n-1. The layer that makes the logits has none. The constants are
not parameters and are not sent; all else is FedAvg with a uniform mean, as in the public code
(lxcnju/FedPAN), from which defaults and details are taken. Deviations: that code raises the
learning rate over its first 10 rounds, takes five batches at least, and averages the counters of
batch normalisation; none of these is done here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from hpcfed.algorithms.base import RoundBased
from hpcfed.models.variants import name_variant

if TYPE_CHECKING:
    from hpcfed.config.job import Job


class FedPAN(RoundBased):
    """amplitude = 0 is FedAvg, bit for bit."""

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: its number of training examples, or 1."""
    encoding: Literal["add", "mul"] = "add"
    """Encodings are added to what layers put out, or scale it."""
    amplitude: NonNegativeFloat = 0.15
    """A, the largest value of an encoding; the authors' code has 0.05 for mul, 0.5 where
    frequency = 8.
    """
    frequency: PositiveFloat = 1.0
    """T, waves over the units of a layer."""

    @property
    def variants(self) -> Any:
        if not self.amplitude:
            return ("",)
        return (name_variant("pan", self.encoding, self.frequency, self.amplitude),)

    def refuses(self, job: Job) -> dict[str, str]:
        found = super().refuses(job)
        if not self.amplitude:
            why = "amplitude = 0: there are no encodings"
            found |= {"algorithm.encoding": why, "algorithm.frequency": why}
        if "logistic" in job.models.mix:
            found["job"] = "needs hidden layers, but logistic has none; set models.mix = ['mlp']"
        return found
