"""Families of models that differ only in depth: a stem, N equal residual blocks, a last layer.

Blocks of He et al., CVPR 2016, arXiv:1512.03385, section 3. All blocks are equal, so that the first
blocks of a deep model are those of a shallower one (`hpcfed.models.depths`): the tensors of block i
are named "body.blocks.i. ..." in each of them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.models.gkt import convolution, pool_layers

UNITS, MAPS = 128, 32  # of each block


class Block(nn.Module):
    """A residual block: a path of layers, added to its input, then a ReLU.

    The output has the input's shape.
    """

    def __init__(self, *path: nn.Module):
        super().__init__()
        self.path = nn.Sequential(*path)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.path(x))


def row(
    stem: Sequence[nn.Module], blocks: Sequence[nn.Module], last: Sequence[nn.Module]
) -> nn.Module:
    """Return the three parts one after the other, as "stem", "blocks" and "last".

    With these names, the names of the last part do not depend on the number of blocks.
    """
    parts = {"stem": stem, "blocks": blocks, "last": last}
    named: OrderedDict[str, nn.Module] = OrderedDict(
        (name, nn.Sequential(*layers)) for name, layers in parts.items()
    )
    return nn.Sequential(named)


def resmlp(shape: tuple[int, ...], d: int, blocks: int) -> nn.Module:
    """128 units, then blocks of two linear layers, then d linear units: [n, *shape] -> [n, d].

    blocks: their number.
    """
    stem = [nn.Flatten(), nn.Linear(math.prod(shape), UNITS), nn.ReLU()]
    row_blocks = [
        Block(nn.Linear(UNITS, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS)) for _ in range(blocks)
    ]
    return row(stem, row_blocks, [nn.Linear(UNITS, d)])


def rescnn(shape: tuple[int, ...], d: int, blocks: int) -> nn.Module:
    """A stem of 32 maps, blocks of two 3x3 convolutions, d linear units: [n, c, h, w] -> [n, d].

    The stem halves the height and width. All convolutions have batch normalisation. The last linear
    layer reads the mean of each map.
    blocks: their number.
    """
    stem = [convolution(shape[0], MAPS, kernel=3, stride=2), nn.ReLU()]
    row_blocks = [
        Block(convolution(MAPS, MAPS, 3), nn.ReLU(), convolution(MAPS, MAPS, 3))
        for _ in range(blocks)
    ]
    return row(stem, row_blocks, pool_layers(MAPS, d))


resmlp_2, resmlp_4, resmlp_8 = (partial(resmlp, blocks=n) for n in (2, 4, 8))
rescnn_2, rescnn_4, rescnn_8 = (partial(rescnn, blocks=n) for n in (2, 4, 8))
