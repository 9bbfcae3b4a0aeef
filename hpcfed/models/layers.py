"""Layers that let bodies from torchvision handle small images and small batches."""

from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

T = TypeVar("T", bound=nn.Module)
GROUPS = 32  # of channels that group normalisation has, at most
GROUP_VALUES = 16  # of an example that a group has, at least; two always become about +1 and -1


class BatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation that also works with one or two values per channel.

    A batch of one example whose feature map has shrunk to 1x1 has no variance, and `nn.BatchNorm2d`
    refuses to train on it. Two values become +1 and -1 whatever they are, and two equal ones (two
    views that are not augmented) multiply the gradient by 300 in each layer. Such a batch is
    normalised with the running statistics and does not change them, as in evaluation. Small images
    reach 1x1 inside ResNet-18, ShuffleNetV2 and GoogLeNet, and a client's last batch may hold one
    example. On all other batches it is `nn.BatchNorm2d`, bit for bit.

    With a fixed momentum, `num_batches_tracked` stays as it is. Nothing reads it then, all clients
    of a rank share it, and counting costs a kernel of its own for each layer and step.
    """

    def skips(self, x: Tensor) -> bool:
        """Return whether a batch is too small to be normalised by its own statistics."""
        return x.numel() <= 2 * self.num_features

    def forward(self, x: Tensor) -> Tensor:
        skip = self.training and self.skips(x)
        if not skip and (self.momentum is None or not self.track_running_stats):
            return super().forward(x)  # the statistics are a plain mean over batches, or none
        self._check_input_dim(x)
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=self.training and not skip,
            momentum=self.momentum or 0.0,
            eps=self.eps,
        )


class SmallBatchNorm(_BatchNorm):
    """Batch normalisation of a user's model that also works with one value per channel.

    Such a batch, often the last one of a client, is normalised with the running statistics and does
    not change them, as in evaluation; torch's layers refuse to train on it. All other batches have
    the bits of torch's layer.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and x.numel() == self.num_features):
            return super().forward(x)
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


class SmallBatchNorm1d(SmallBatchNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d` that also works with one value per channel."""


class SmallBatchNorm2d(SmallBatchNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d` that also works with one value per channel."""


class SmallBatchNorm3d(SmallBatchNorm, nn.BatchNorm3d):
    """`nn.BatchNorm3d` that also works with one value per channel."""


SMALL: dict[type[nn.Module], type[SmallBatchNorm]] = {
    nn.BatchNorm1d: SmallBatchNorm1d,
    nn.BatchNorm2d: SmallBatchNorm2d,
    nn.BatchNorm3d: SmallBatchNorm3d,
}


class Conv2d(nn.Conv2d):
    """A convolution that becomes one matrix product for very small maps.

    The maps are so small that each output sees all of its input, as in the last stages of networks
    for ImageNet on 32x32 images. There a kernel mostly multiplies the zeros around the image (a 3x3
    kernel on one pixel: eight of nine, three quarters of ResNet-18's weights), and the rest is too
    little work for convolution libraries to be fast. The values are those of `nn.Conv2d` except for
    the order in which products are summed.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and 1 < self.groups == self.in_channels:
            return depthwise(self, x)
        rows, columns = map(
            kernel_windows, x.shape[2:], self.kernel_size, self.padding, self.stride
        )
        if not rows or not columns or self.groups != 1:
            return super().forward(x)
        x, weight = (
            x.permute(0, 2, 3, 1),
            self.weight.permute(0, 2, 3, 1),
        )  # channels last, as they lie in memory
        parts = [kernel_part(weight, r, c) for r in rows for c in columns]
        outputs = apply_parts(x, parts, self.bias)
        return outputs.unflatten(1, (len(rows), len(columns), -1)).permute(0, 3, 1, 2)


def depthwise(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Return the output of a depthwise convolution, by torch's own kernel on a GPU.

    With channels last torch takes cuDNN's, which is planned anew for each size of a batch: 0.1 s a
    layer on an H200, 1.7 s for ShuffleNetV2, and a client's last batch has a size of its own.
    """
    # the stride of an axis of length 1 says how a weight lies; a view has that of channels first
    weight = layer.weight.flatten().view(layer.weight.shape)
    return F.conv2d(
        x.contiguous(),
        weight,
        layer.bias,
        layer.stride,
        layer.padding,
        layer.dilation,
        layer.groups,
    )


def kernel_part(weight: Tensor, rows: slice, columns: slice) -> Tensor:
    """Return weight[:, rows, columns] of a kernel [outputs, rows, columns, inputs].

    On a CPU it is padding by negative widths, whose backward pass is one operation; that of a slice
    fills a whole kernel with zeros for each side. A GPU needs two kernels for such a padding.
    """
    if weight.is_cuda:
        return weight[:, rows, columns]
    ends = (columns.stop - weight.shape[2], rows.stop - weight.shape[1])
    widths = (0, 0, -columns.start, ends[0], -rows.start, ends[1])
    return F.pad(weight, widths) if any(widths) else weight


def apply_parts(x: Tensor, parts: list[Tensor], bias: Tensor | None) -> Tensor:
    """Return the outputs [n, places * outputs] of inputs [n, height, width, inputs].

    parts: the part of the kernel that each place sees.
    """
    matrix = (
        torch.cat([part.flatten(1) for part in parts]) if len(parts) > 1 else parts[0].flatten(1)
    )
    return F.linear(x.flatten(1), matrix, None if bias is None else bias.repeat(len(parts)))


@cache
def kernel_windows(size: int, kernel: int, padding: int, stride: int) -> tuple[slice, ...]:
    """Return, for each output along one side, the places of the kernel that cover the image.

    The result is empty if some output does not cover the whole image.

    size: of the image. Its first value lies under place padding - j * stride of the kernel of
    output j.
    """
    outputs = (size + 2 * padding - kernel) // stride + 1
    starts = [padding - j * stride for j in range(outputs)]
    covered = all(0 <= at <= kernel - size for at in starts)
    return tuple(slice(at, at + size) for at in starts) if covered else ()


def for_small_images(net: nn.Module) -> nn.Module:
    """Replace a net's batch norms and convolutions by those of this file, and return the net.

    Tensors and their names stay the same.
    """
    for module in net.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = (
                BatchNorm2d  # two of torchvision's three nets have no norm_layer argument
            )
        elif (
            type(module) is nn.Conv2d
            and module.dilation == (1, 1)
            and module.padding_mode == "zeros"
        ):
            module.__class__ = Conv2d
    return net


def for_small_batches(net: nn.Module) -> None:
    """Replace torch's batch norms with running statistics by those for one value per channel."""
    for module in net.modules():
        if type(module) in SMALL and getattr(module, "running_mean", None) is not None:
            module.__class__ = SMALL[type(module)]


def has_batch_norm(net: nn.Module) -> bool:
    """Return whether a network has layers of batch normalisation."""
    return any(isinstance(module, _BatchNorm) for module in net.modules())


class GroupNorm(nn.GroupNorm):
    """Group normalisation that is layer normalisation if its groups would have few values.

    If a group would have fewer than GROUP_VALUES values of an example, as those of 32 channels of
    one value each (a vector, or a map of 1x1), all channels are one group: the mean and variance of
    so few values take away most of what they say. On all other inputs it is `nn.GroupNorm`.
    """

    def forward(self, x: Tensor) -> Tensor:
        values = x.shape[1:].numel() // self.num_groups
        groups = self.num_groups if values >= GROUP_VALUES else 1
        return F.group_norm(x, groups, self.weight, self.bias, self.eps)


def use_group_norm(net: T) -> T:
    """Replace a network's layers of batch normalisation by group normalisation, and return it.

    A layer of C channels has the most groups of at least two channels that divide C, up to GROUPS
    (Wu and He, ECCV 2018, arXiv:1803.08494), or a single one on inputs for which they would be too
    small (`GroupNorm`): vectors after linear layers, and small maps of few channels.
    """
    for name, module in [*net.named_modules()]:
        if isinstance(module, _BatchNorm):
            C = module.num_features
            groups = max(g for g in range(1, GROUPS + 1) if C % g == 0 and (g == 1 or 2 * g <= C))
            new = GroupNorm(groups, C, module.eps, module.affine)
            net.get_submodule(name.rpartition(".")[0]).add_module(name.rpartition(".")[2], new)
    return net


def stem(conv: nn.Conv2d, channels: int) -> nn.Conv2d:
    """Return a net's first convolution for images of these channels.

    It is the same convolution if it takes them already, else a new one.
    """
    if conv.in_channels == channels:
        return conv
    return nn.Conv2d(
        channels,
        conv.out_channels,
        conv.kernel_size,  # type: ignore[arg-type]
        conv.stride,  # type: ignore[arg-type]
        conv.padding,  # type: ignore[arg-type]
        bias=conv.bias is not None,
    )
