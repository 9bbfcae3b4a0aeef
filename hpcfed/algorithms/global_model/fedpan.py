"""FedPAN: FedAvg of networks whose units know their position, so that they cannot swap places.

Li et al. (Federated Learning with Position-Aware Neurons), CVPR 2022, arXiv:2203.14666, section 4.
After each convolution and linear layer, and its normalisation if there is one, but before the ReLU,
the n units get a constant. It is added or multiplied, h + e or h (1 + e), with e_j = A sin(2 pi T j
/ n), j = 0..n-1. The layer of the logits has no constants. The constants are not parameters and are
not sent. All else is FedAvg with a uniform mean, as in the public code (lxcnju/FedPAN), the source
of defaults and details.

Objective: F_k(w)
Server: w <- mean_k w_k
Round:
1. The server sends its model to the cohort.
2. Each client trains; every unit of a layer has a constant that tells its position.
3. It sends its model, without the constants.
4. The server takes the uniform mean of the models.

Deviations: that code raises the learning rate over its first 10 rounds, takes at least five
batches, clips the norm of gradients at 100, and averages the counters of batch normalisation; none
of this is done here. The first convolution of its ResNets has no constants, and their logits follow
the pooled channels; here that convolution has them, and so has the linear layer of d values before
the logits.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from hpcfed import Guide, Job, Model, RoundBased
from hpcfed.config.conditions import field
from hpcfed.models.hooks import PureHook
from hpcfed.models.variants import name_variant

LAYERS = (nn.Conv2d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class FedPAN(RoundBased):
    """FedAvg with position-aware units; amplitude = 0 is FedAvg, bit for bit."""

    guide = Guide(
        data="different labels",
        sent="all weights",
        won="images with few classes per client: units keep their places",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: its number of training examples, or 1."""
    encoding: Literal["add", "mul"] = field("add", used_if="amplitude")
    """Encodings are added to the outputs of layers, or scale them."""
    amplitude: NonNegativeFloat = 0.15
    """A, the largest value of an encoding; the authors' code has 0.05 for mul, 0.5 if frequency =
    8.
    """
    frequency: PositiveFloat = field(1.0, used_if="amplitude")
    """T, number of waves over the units of a layer."""

    @property
    def variants(self) -> Any:
        if not self.amplitude:
            return ("",)
        return (name_variant("pan", self.encoding, self.frequency, self.amplitude),)

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if "logistic" in job.models.mix:
            reasons["job"] = "needs hidden layers, but logistic has none; set models.mix = ['mlp']"
        return reasons


def encode_positions(model: Model, kind: str, frequency: float, amplitude: float) -> Model:
    """Add position encodings to the units of the body, and return the model.

    After each convolution and linear layer of the body, or the normalisation that follows it, h
    becomes h + e or h (1 + e); e_j = A sin(2 pi T j / n) for unit j of n.
    kind: add or mul.  frequency: T.  amplitude: A.  Section 4.
    """
    modules = [m for m in model.body.modules() if not list(m.children())]
    for layer, following in zip(modules, [*modules[1:], None], strict=True):
        if isinstance(layer, LAYERS):
            encoded = following if isinstance(following, NORMS) else layer
            encoded.register_forward_hook(Encoding(kind, frequency, amplitude))
    return model


@dataclass(frozen=True)
class Encoding(PureHook):
    """A hook that encodes the positions of a layer's units (dimension 1 of its output)."""

    kind: str
    frequency: float
    amplitude: float

    def __call__(self, layer: Any, inputs: Any, out: Tensor) -> Tensor:
        e = encode_units(out.shape[1], self.frequency, self.amplitude, out.device)
        e = e.to(out.dtype).view(-1, *[1] * (out.dim() - 2))
        return out + e if self.kind == "add" else out * (1 + e)


def encode_units(
    n: int, frequency: float, amplitude: float, device: torch.device | str = "cpu"
) -> Tensor:
    """Return A sin(2 pi T j / n) for j = 0..n-1, float64, [n].

    frequency: T.  amplitude: A.
    """
    places = torch.arange(n, dtype=torch.float64, device=device)
    return amplitude * torch.sin(2 * math.pi * frequency / n * places)
