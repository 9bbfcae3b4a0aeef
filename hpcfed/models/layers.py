"""What the bodies taken from torchvision need so that they serve small images and small batches."""

from torch import Tensor, nn
from torch.nn import functional as F


class BatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation that survives one or two values per channel.

    A batch of one example whose feature map has shrunk to 1x1 has no variance, and `nn.BatchNorm2d` refuses
    to train on it; two values become +1 and -1 whatever they are, and two equal ones (two views that are not
    augmented) blow up the gradient by 300 a layer. Such a batch is normalised with the running statistics and
    leaves them alone, as in evaluation. Small images reach 1x1 inside ResNet-18, ShuffleNetV2 and GoogLeNet,
    and a client's last batch may hold one example. On all other batches it is `nn.BatchNorm2d`, bit for bit.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() <= 2 * self.num_features:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        return super().forward(x)


def tolerant(net: nn.Module) -> nn.Module:
    """The same net, its batch norms replaced by ours; tensors and names stay."""
    for module in net.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = BatchNorm2d  # torchvision takes no norm layer for two of the three nets
    return net


def stem(conv: nn.Conv2d, channels: int) -> nn.Conv2d:
    """A net's first convolution for images of so many channels; a new one only where they differ."""
    if conv.in_channels == channels:
        return conv
    return nn.Conv2d(
        channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, bias=conv.bias is not None
    )
