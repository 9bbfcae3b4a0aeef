"""What the bodies taken from torchvision need so that they serve small images and small batches."""

from functools import cache

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


class Conv2d(nn.Conv2d):
    """A convolution that leaves out the places of its kernel that never meet the image.

    On a map of one pixel a 3x3 kernel with padding 1 multiplies eight zeros for each value: the whole last stage
    of ResNet-18 on 32x32 images, three quarters of its weights, so that a step takes 1.3 times as long with them.
    The values are those of `nn.Conv2d` but for the order in which products are summed.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.is_meta:  # there is nothing to save, and who follows the units of layers wants to see whole weights
            return super().forward(x)
        rows, columns = map(met, x.shape[2:], self.kernel_size, self.padding, self.stride)
        if rows is None and columns is None:
            return super().forward(x)
        rows, columns = rows or slice(0, self.kernel_size[0]), columns or slice(0, self.kernel_size[1])
        padding = (self.padding[0] - rows.start, self.padding[1] - columns.start)
        return F.conv2d(x, self.weight[:, :, rows, columns], self.bias, self.stride, padding, 1, self.groups)


@cache
def met(size: int, kernel: int, padding: int, stride: int) -> slice | None:
    """The places of a kernel, along one side, that meet an image of this size; None: all of them, or it is not known.

    What is left is used with the padding before it made shorter by as much, on both sides: only where that gives
    as many outputs.
    """
    outputs = (size + 2 * padding - kernel) // stride + 1
    found = [i for i in range(kernel) if any(0 <= j * stride - padding + i < size for j in range(outputs))]
    if not found or len(found) == kernel:
        return None
    first, length = found[0], found[-1] + 1 - found[0]
    fits = (size + 2 * (padding - first) - length) // stride + 1 == outputs
    return slice(first, first + length) if fits else None


def for_small_images(net: nn.Module) -> nn.Module:
    """The same net with the batch norms and convolutions of this file; tensors and names stay."""
    for module in net.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = BatchNorm2d  # torchvision takes no norm layer for two of the three nets
        elif type(module) is nn.Conv2d and module.dilation == (1, 1) and module.padding_mode == "zeros":
            module.__class__ = Conv2d
    return net


def stem(conv: nn.Conv2d, channels: int) -> nn.Conv2d:
    """A net's first convolution for images of so many channels; a new one only where they differ."""
    if conv.in_channels == channels:
        return conv
    return nn.Conv2d(
        channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, bias=conv.bias is not None
    )
