"""The models of the tables in this folder, which train at thousands of images a second on one core:
one of each family of FedClassAvg's four (residual, shuffled, inception, plain), and FedHeNN's five
CNNs at half their channels (henn_1 to henn_5).

Each is a function of the shape of an image, [channels, height, width], and of the width d of the
representation, and returns the body, [n, *shape] -> [n, d]. The first four begin with a convolution
of stride 2, as the papers' networks do, and have batch normalisation where their family has it.
"""

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn


def residual(shape: tuple[int, ...], d: int) -> nn.Module:
    """After ResNet: a stem of 16 maps and two basic blocks, 32 and 64 maps."""
    stem = _convolution(shape[0], 16, 2)
    return nn.Sequential(*stem, _Basic(16, 32, 2), _Basic(32, 64, 2), *_representation(64, d))


def shuffled(shape: tuple[int, ...], d: int) -> nn.Module:
    """After ShuffleNetV2: two units of 24 maps and one of 96, of which half pass by."""
    return nn.Sequential(
        *_convolution(shape[0], 24, 2),
        nn.MaxPool2d(2),
        _Shuffle(24),
        _Shuffle(24),
        *_convolution(24, 96, 2),
        _Shuffle(96),
        *_representation(96, d),
    )


def inception(shape: tuple[int, ...], d: int) -> nn.Module:
    """After GoogLeNet: two modules of 1x1, 3x3 and pooled branches side by side."""
    return nn.Sequential(
        *_convolution(shape[0], 16, 2),
        nn.MaxPool2d(2),
        _Inception(16, 16, 32, 16),
        nn.MaxPool2d(2),
        _Inception(64, 32, 64, 32),
        *_representation(128, d),
    )


def plain(shape: tuple[int, ...], d: int) -> nn.Module:
    """After AlexNet: three convolutions, max-pooling and two linear layers, no normalisation."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 24, 5, stride=2, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(48, 96, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(384, 256),
        nn.ReLU(inplace=True),
        nn.Linear(256, d),
    )


def _henn(shape: tuple[int, ...], d: int, convs: int, fcs: int) -> nn.Module:
    """convs convolutions of 16, 32 and 64 maps, each with max-pooling, and fcs - 1 linear layers of
    128 units, the last of d; as `hpcfed.models.fedhenn` with 32, 64, 128 maps and 256 units.
    """
    if fcs == 1:
        pooled = [nn.AdaptiveAvgPool2d(4), nn.Flatten()]
        return nn.Sequential(*_pooled(shape[0], d // 16), *pooled)
    maps = (shape[0], *(16, 32, 64)[:convs])
    layers = [layer for pair in pairwise(maps) for layer in _pooled(*pair)]
    flat = maps[-1] * (shape[1] >> convs) * (shape[2] >> convs)
    layers.append(nn.Flatten())
    for inputs, outputs in pairwise((flat, *[128] * (fcs - 2), d)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


henn_1 = partial(_henn, convs=1, fcs=1)
henn_2 = partial(_henn, convs=1, fcs=2)
henn_3 = partial(_henn, convs=2, fcs=2)
henn_4 = partial(_henn, convs=2, fcs=3)
henn_5 = partial(_henn, convs=3, fcs=3)


def _pooled(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]


def _convolution(inputs: int, outputs: int, stride: int = 1, kernel: int = 3) -> list[nn.Module]:
    padding = kernel // 2
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def _representation(maps: int, d: int) -> list[nn.Module]:
    """The mean of each map, then d linear units."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(maps, d)]


class _Basic(nn.Module):
    """Two 3x3 convolutions, added to the input or to a 1x1 convolution of it."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.path = nn.Sequential(
            *_convolution(inputs, outputs, stride), *_convolution(outputs, outputs)[:2]
        )
        same = stride == 1 and inputs == outputs
        project = _convolution(inputs, outputs, stride, kernel=1)[:2]
        self.shortcut = nn.Identity() if same else nn.Sequential(*project)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.shortcut(x))


class _Shuffle(nn.Module):
    """Half of the maps: 1x1, depthwise 3x3 and 1x1 convolution; then all maps change places."""

    def __init__(self, maps: int):
        super().__init__()
        half = maps // 2
        depthwise = nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False)
        self.path = nn.Sequential(
            *_convolution(half, half, kernel=1),
            depthwise,
            nn.BatchNorm2d(half),
            *_convolution(half, half, kernel=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, dim=1)
        both = torch.stack((one, self.path(other)), dim=2)  # [n, maps / 2, 2, h, w]
        return both.flatten(1, 2)


class _Inception(nn.Module):
    """1x1, 1x1 then 3x3, and pooled 1x1 convolutions of the same input, side by side."""

    def __init__(self, inputs: int, one: int, three: int, pooled: int):
        super().__init__()
        self.one = nn.Sequential(*_convolution(inputs, one, kernel=1))
        self.three = nn.Sequential(
            *_convolution(inputs, three // 2, kernel=1), *_convolution(three // 2, three)
        )
        pool = nn.AvgPool2d(3, stride=1, padding=1)
        self.pooled = nn.Sequential(pool, *_convolution(inputs, pooled, kernel=1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.one(x), self.three(x), self.pooled(x)), dim=1)
