"""The networks of the study: five CNNs of 45,000 to 134,000 weights on 3x32x32.

Each begins with a convolution of stride 2 and a pooling, so that most of the work is done on 8x8
maps: a step costs a half to a third of that of FedHeNN's networks at half their channels, which
have 760 to 276,000 weights. Each is a function of the shape of an image, [channels, height, width],
and of the width d of the representation, and returns the body, [n, *shape] -> [n, d].
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from torch import nn


def _small(
    shape: tuple[int, ...], d: int, maps: Sequence[int], units: Sequence[int] = (), kernel: int = 3
) -> nn.Module:
    """Convolutions of these maps, each with max-pooling, except that the third has none; then
    linear layers of these units, and one of d.

    kernel: of the first convolution, which has stride 2.
    """
    height, width = ((size + 1) // 2 // 2 for size in shape[1:])
    layers: list[nn.Module] = [
        nn.Conv2d(shape[0], maps[0], kernel, stride=2, padding=kernel // 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    ]
    for i, (inputs, outputs) in enumerate(pairwise(maps)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
        if i == 0:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    layers.append(nn.Flatten())
    for inputs, outputs in pairwise((maps[-1] * height * width, *units, d)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


small_1 = partial(_small, maps=(16,))
small_2 = partial(_small, maps=(20, 36))
small_3 = partial(_small, maps=(24, 48))
small_4 = partial(_small, maps=(32,), kernel=5)
small_5 = partial(_small, maps=(16, 32, 48))
