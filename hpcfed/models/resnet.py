"""ResNet-18: He et al., CVPR 2016, arXiv:1512.03385, table 1; as in FedClassAvg, section 4.1."""

from torch import nn

from hpcfed.core.compat import import_torchvision
from hpcfed.models.layers import for_small_images, stem


def resnet18(shape: tuple[int, ...], d: int) -> nn.Module:
    """torchvision's ResNet-18 with a last layer of width d: [n, c, h, w] -> [n, d].

    The stem for ImageNet (7x7, stride 2, then max-pooling) is kept for small images too, as
    FedClassAvg's authors do. Deviations: none.
    """
    net = import_torchvision().models.resnet18(num_classes=d)
    net.conv1 = stem(net.conv1, shape[0])
    return for_small_images(net)
