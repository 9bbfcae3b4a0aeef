"""torchvision's networks with a last layer of width d: [n, c, h, w] -> [n, d].

They are those of FedClassAvg, section 4.1, whose authors keep the stems for ImageNet (stride 2,
then max-pooling) for small images too.
"""

from torch import nn

from hpcfed.core.compat import import_torchvision
from hpcfed.models.layers import for_small_images, stem


def resnet18(shape: tuple[int, ...], d: int) -> nn.Module:
    """ResNet-18: He et al., CVPR 2016, arXiv:1512.03385, table 1. Deviations: none."""
    net = import_torchvision().models.resnet18(num_classes=d)
    net.conv1 = stem(net.conv1, shape[0])
    return for_small_images(net)


def shufflenetv2(shape: tuple[int, ...], d: int) -> nn.Module:
    """ShuffleNetV2 of width 1.0: Ma et al., ECCV 2018, arXiv:1807.11164, table 5.

    Deviations: none.
    """
    net = import_torchvision().models.shufflenet_v2_x1_0(num_classes=d)
    net.conv1[0] = stem(net.conv1[0], shape[0])
    return for_small_images(net)


def googlenet(shape: tuple[int, ...], d: int) -> nn.Module:
    """GoogLeNet: Szegedy et al., CVPR 2015, arXiv:1409.4842, table 1.

    Images must be 15x15 or larger. Weights are truncated-normal (standard deviation 0.01), except
    in the replaced last layer (and a replaced first convolution), which start as any `nn.Linear`
    (`nn.Conv2d`). Dropout 0.2 before the last layer.
    Deviations: FedClassAvg's authors keep the two auxiliary heads, half of all parameters
    (6,379,984 of 12,504,688), compute them in training and never use their output; here they are
    left out.
    """
    net = import_torchvision().models.GoogLeNet(aux_logits=False, init_weights=True)
    net.conv1.conv = stem(net.conv1.conv, shape[0])
    net.fc = nn.Linear(net.fc.in_features, d)
    return for_small_images(net)
