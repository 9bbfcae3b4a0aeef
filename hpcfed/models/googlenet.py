"""GoogLeNet: Szegedy et al., CVPR 2015, arXiv:1409.4842, table 1.

It is one of the models of FedClassAvg, section 4.1.
"""

from torch import nn

from hpcfed.core.compat import import_torchvision
from hpcfed.models.layers import for_small_images, stem


def googlenet(shape: tuple[int, ...], d: int) -> nn.Module:
    """torchvision's GoogLeNet with a last layer of width d: [n, c, h, w] -> [n, d].

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
