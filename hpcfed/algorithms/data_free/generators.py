"""Generators, networks that make examples from noise, and functions shared by data-free methods.

The generator of images is that of Fang et al. (Data-Free Adversarial Distillation), 2019,
arXiv:1912.11006. Its last layer is a normalisation, because models take normalised images.
"""

import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from hpcfed import ConfigError, DivergedError, Federation, Params, rng
from hpcfed.core.payload import not_finite
from hpcfed.core.shapes import Shapes

Values = TypeVar("Values")  # tensors, alone or by name
CHANNELS = 64  # of the generator's widest maps
HIDDEN = 256  # units of the generator of examples that are not images


def norm(channels: int, affine: bool = True) -> nn.Module:
    """Return a batch normalisation without running statistics."""
    return nn.BatchNorm2d(channels, affine=affine, track_running_stats=False)


class ImageGenerator(nn.Module):
    """Generator of normalised images: noise [n, size] -> images [n, c, h, w].

    It starts at a quarter of the image's size, which it doubles twice.
    """

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
    """Generator of examples of any shape: noise [n, size] -> examples [n, *shape]."""

    def __init__(self, size: int, shape: tuple[int, ...]):
        super().__init__()
        self.shape = shape
        self.first, self.last = nn.Linear(size, HIDDEN), nn.Linear(HIDDEN, math.prod(shape))

    def forward(self, noise: Tensor) -> Tensor:
        return self.last(F.leaky_relu(self.first(noise), 0.2)).view(-1, *self.shape)


def example_shape(fed: Federation) -> tuple[int, ...]:
    """Return the shape of one example; ConfigError if examples cannot be made as values."""
    shape = fed.store.form[0]
    if fed.store.vocabulary or isinstance(shape, Shapes):
        what = "texts" if fed.store.vocabulary else "of several modalities"
        raise ConfigError(
            f"{fed.job.algorithm.name} makes examples as values, but those of "
            f"{fed.job.data.name} are {what}\n  take a data set of images, or another method"
        )
    return shape


def check_finite(fed: Federation, what: str, value: Values, advice: str) -> Values:
    """Return the value; DivergedError if it is nan or infinite.

    what: name of what has the value, such as "model of client 3".
    advice: learning rates that may be too large.
    """
    if name := not_finite(value):
        raise DivergedError(
            f"{fed.warnings.where(None)}: {name} of its {what} is nan or infinite after round "
            f"{fed.t + 1}; {fed.warnings.last_checkpoint}\n  smaller learning rates may help "
            f"({advice})"
        )
    return value


def apply_layers(weights: Params, x: Tensor, training: bool = False) -> Tensor:
    """Return the outputs of a linear layer, batch normalisation, a ReLU and a linear layer.

    weights: by their names in an `nn.Sequential` of these; the bias of the first layer may be
    missing.  training: batch normalisation takes the batch's statistics, which also update the
    running ones.
    """
    h = F.linear(x, weights["0.weight"], weights.get("0.bias"))
    statistics = weights["1.running_mean"], weights["1.running_var"]
    h = F.batch_norm(h, *statistics, weights["1.weight"], weights["1.bias"], training)
    return F.linear(F.relu(h), weights["3.weight"], weights["3.bias"])


class Generator:
    """Generator of examples of the job's shape, with weights that the caller passes.

    size: number of noise values of one example.
    classes: number of classes, if the generator takes the class of each example; 0: it takes none.
    Raises ConfigError if such examples cannot be made.
    """

    def __init__(self, fed: Federation, size: int, classes: int = 0):
        shape = example_shape(fed)
        kind = ImageGenerator if len(shape) == 3 else VectorGenerator
        with rng.scoped(fed.seed, "generator"):
            self.module = kind(size + classes, shape).to(fed.device)
        self.size, self.classes, self.device = size, classes, fed.device

    def initial(self) -> Params:
        """Return random weights, the same on all ranks."""
        return Params(self.module.named_parameters()).clone()

    def make(
        self, weights: Params, n: int, g: torch.Generator, labels: Tensor | None = None
    ) -> Tensor:
        """Make n examples as models take them, [n, *shape].

        g: generator of the noise, on the CPU.
        labels: classes of the examples, [n], if the generator takes them.
        """
        noise = torch.randn(n, self.size, generator=g).to(self.device)
        if labels is not None:
            noise = torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], 1)
        return self.decode(weights, noise)

    def decode(self, weights: Params, noise: Tensor) -> Tensor:
        """Make the example of each row of noise values, as models take them, [n, *shape]."""
        return functional_call(self.module, dict(weights), (noise,))
