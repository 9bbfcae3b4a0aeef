"""Networks that make examples from noise, for servers without data.

The generator of images is that of Fang et al. (Data-Free Adversarial Distillation), 2019,
arXiv:1912.11006: it ends in a normalisation, for models take normalised images.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation

CHANNELS = 64  # of the generator's widest maps
HIDDEN = 256  # units of a generator of examples that are no images


def norm(channels: int, affine: bool = True) -> nn.Module:
    """Normalisation by the batch, in which nothing is kept."""
    return nn.BatchNorm2d(channels, affine=affine, track_running_stats=False)


class ImageGenerator(nn.Module):
    """noise [n, size] -> images [n, c, h, w], normalised: a quarter of the size, doubled twice."""

    def __init__(self, size: int, shape: tuple[int, ...]):
        super().__init__()
        channels, self.height, self.width = shape
        self.start = (CHANNELS, math.ceil(self.height / 4), math.ceil(self.width / 4))
        self.first = nn.Linear(size, math.prod(self.start))
        self.rest = nn.Sequential(
            norm(CHANNELS),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
            norm(CHANNELS),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(CHANNELS, CHANNELS // 2, 3, padding=1),
            norm(CHANNELS // 2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(CHANNELS // 2, channels, 3, padding=1),
            nn.Tanh(),
            norm(channels, affine=False),
        )

    def forward(self, noise: Tensor) -> Tensor:
        x = self.rest(self.first(noise).view(-1, *self.start))
        return x[:, :, : self.height, : self.width]


class VectorGenerator(nn.Module):
    """noise [n, size] -> examples [n, *shape] of any shape."""

    def __init__(self, size: int, shape: tuple[int, ...]):
        super().__init__()
        self.shape = shape
        self.first, self.last = nn.Linear(size, HIDDEN), nn.Linear(HIDDEN, math.prod(shape))

    def forward(self, noise: Tensor) -> Tensor:
        return self.last(F.leaky_relu(self.first(noise), 0.2)).view(-1, *self.shape)


class Generator:
    """A generator of examples of the job's shape for the server's work.

    size: values of the noise of one example. Its weights are the caller's, by name; ConfigError
    where examples are texts, which cannot be made so.
    """

    def __init__(self, fed: Federation, size: int):
        if fed.store.vocabulary:
            raise ConfigError(
                f"{fed.job.algorithm.name} makes examples as values, but those of "
                f"{fed.job.data.name} are texts\n  take a data set of images, or another method"
            )
        shape = fed.store.form[0]
        kind = ImageGenerator if len(shape) == 3 else VectorGenerator
        with rng.scoped(fed.seed, "generator"):
            self.module = kind(size, shape).to(fed.device)
        self.size, self.device = size, fed.device

    def initial(self) -> Params:
        """Random weights, the same on all ranks."""
        return Params(self.module.named_parameters()).clone()

    def make(self, weights: Params, n: int, g: torch.Generator) -> Tensor:
        """n examples as models take them, [n, *shape]; g: what the noise is drawn from, on the
        CPU.
        """
        noise = torch.randn(n, self.size, generator=g).to(self.device)
        return functional_call(self.module, dict(weights), (noise,))
