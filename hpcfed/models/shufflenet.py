"""ShuffleNetV2: Ma et al., ECCV 2018, arXiv:1807.11164, table 5; as in FedClassAvg, section 4.1."""

from torch import nn

from hpcfed.core.compat import import_torchvision
from hpcfed.models.layers import for_small_images, stem


def shufflenetv2(shape: tuple[int, ...], d: int) -> nn.Module:
    """torchvision's ShuffleNetV2 of width 1.0 with a last layer of width d: [n, c, h, w] -> [n, d].

    The stem for ImageNet (stride 2, then max-pooling) is kept, as FedClassAvg's authors do.
    Deviations: none.
    """
    net = import_torchvision().models.shufflenet_v2_x1_0(num_classes=d)
    net.conv1[0] = stem(net.conv1[0], shape[0])
    return for_small_images(net)
