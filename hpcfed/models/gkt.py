"""FedGKT's models: a small ResNet-8 for clients, and server models that read its feature maps.

He et al. (FedGKT), NeurIPS 2020, arXiv:2007.14513, appendix; blocks of He et al., CVPR 2016,
arXiv:1512.03385, section 3 and figure 5. Client: 3x3 convolution to 16 maps, batch normalisation,
ReLU (these maps are sent), then two bottleneck blocks. Server: what follows those maps in ResNet-56
or ResNet-20 for CIFAR, with three stages of 6 or 2 bottleneck blocks. Deviations: one more linear
layer, from the pooled maps to the representation.
"""

from functools import partial
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.models.layers import BatchNorm2d

MAPS, WIDER = (
    16,
    4,
)  # maps of the first stage; a block writes four times as many as its inner layers have


class Bottleneck(nn.Module):
    """A residual block of 1x1, 3x3 and 1x1 convolutions, added to the input.

    [n, c, h, w] -> [n, 4 inner, h / stride, w / stride].
    """

    def __init__(self, inputs: int, inner: int, stride: int = 1):
        super().__init__()
        widths, kernels, strides = (inputs, inner, inner, WIDER * inner), (1, 3, 1), (1, stride, 1)
        layers = [
            convolution(*pair, k, s)
            for pair, k, s in zip(pairwise(widths), kernels, strides, strict=True)
        ]
        self.path = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
        same = stride == 1 and inputs == WIDER * inner
        self.shortcut = nn.Identity() if same else convolution(inputs, WIDER * inner, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.path(x) + self.shortcut(x))


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution, padded to keep the image size at stride 1, and batch normalisation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, BatchNorm2d(outputs))


def stage(inputs: int, inner: int, blocks: int, stride: int = 1) -> list[Bottleneck]:
    """Return blocks of one width; the first has the stride."""
    return [
        Bottleneck(inputs if b == 0 else WIDER * inner, inner, stride if b == 0 else 1)
        for b in range(blocks)
    ]


def pool_layers(width: int, d: int) -> list[nn.Module]:
    """Return layers for the mean of each map, then d linear units."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, d)]


def resnet8(shape: tuple[int, ...], d: int) -> nn.Module:
    """The client's model: [n, c, h, w] -> [n, d].

    Its first three layers give the maps [n, 16, h, w].
    """
    stem = [nn.Conv2d(shape[0], MAPS, 3, padding=1, bias=False), BatchNorm2d(MAPS), nn.ReLU()]
    return nn.Sequential(*stem, *stage(MAPS, MAPS, blocks=2), *pool_layers(WIDER * MAPS, d))


def _server(shape: tuple[int, ...], d: int, blocks: int) -> nn.Module:
    """Three stages on feature maps: [n, c, h, w] -> [n, d]."""
    layers = stage(shape[0], MAPS, blocks)
    for inner in (2 * MAPS, 4 * MAPS):
        layers += stage(WIDER * inner // 2, inner, blocks, stride=2)
    return nn.Sequential(*layers, *pool_layers(4 * WIDER * MAPS, d))


resnet20_server = partial(_server, blocks=2)
resnet56_server = partial(_server, blocks=6)
