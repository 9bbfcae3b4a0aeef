"""FedHeNN's five CNNs: Makhija et al., ICML 2022, arXiv:2202.07757, section 4.1.

The paper gives the smallest and the largest network (1 conv + 1 FC, 3 conv + 3 FC) and the
homogeneous model (2 conv, each with max-pooling, + 3 FC, here fedhenn-4); FC counts the head. It
leaves open, and these are chosen here: 3x3 convolutions with 32, 64 and 128 channels, each with
ReLU and 2x2 max-pooling; an inner fully connected layer of 256 units; ReLU after each; and the two
other networks.
Deviations: all five have representations of the same width d, so that methods that exchange heads
can use them.
"""

from functools import partial
from itertools import pairwise

from torch import nn

CHANNELS = (32, 64, 128)
INNER = 256


def _body(shape: tuple[int, ...], d: int, convs: int, fcs: int) -> nn.Module:
    """Return convolutions and fcs - 1 fully connected layers: [n, c, h, w] -> [n, d], >= 0."""
    if fcs == 1:
        return _convolutional(shape[0], d)
    channels = (shape[0], *CHANNELS[:convs])
    layers = [layer for pair in pairwise(channels) for layer in _conv(*pair)]
    layers.append(nn.Flatten())
    flat = channels[-1] * (shape[1] >> convs) * (shape[2] >> convs)
    for pair in pairwise((flat, *[INNER] * (fcs - 2), d)):
        layers += [nn.Linear(*pair), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def _conv(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]


def _convolutional(channels: int, d: int) -> nn.Module:
    """Return one convolution whose maps are averaged over the cells of a grid: d values in all.

    The grid is the finest of 4x4, 2x2 and 1x1 that divides d.
    """
    grid = next(g for g in (4, 2, 1) if d % g**2 == 0)
    return nn.Sequential(*_conv(channels, d // grid**2), nn.AdaptiveAvgPool2d(grid), nn.Flatten())


fedhenn_1 = partial(_body, convs=1, fcs=1)
fedhenn_2 = partial(_body, convs=1, fcs=2)
fedhenn_3 = partial(_body, convs=2, fcs=2)
fedhenn_4 = partial(_body, convs=2, fcs=3)
fedhenn_5 = partial(_body, convs=3, fcs=3)
