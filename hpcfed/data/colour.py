"""Changes of colour for a batch of images in 0..1, each image with its own factor.

x: [B, C, H, W], float32, 0..1; factor: [B].  All return [B, C, H, W] in 0..1, as the functions of the same
names in torchvision.transforms.v2.functional do for one factor.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

GREY = (0.2989, 0.587, 0.114)  # weights of red, green, blue; ITU-R BT.601 as torchvision rounds them
STRENGTH = (0.4, 0.4, 0.4, 0.1)  # of brightness, contrast, saturation, hue
JITTERED, GREYED = 0.8, 0.2  # probabilities
TINY = 1e-30  # a chroma to divide by where there is none


def jitter(x: Tensor, order: Sequence[int], draws: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue in the given order with probability 0.8, then grey with 0.2.

    order: a permutation of 0..3.  draws: [B, 6], uniform: one a change, whether to change, whether to grey.
    Saturation, hue and grey exist for three channels alone.  Sources: see `hpcfed.data.augment.simclr`.
    """
    strength = torch.tensor(STRENGTH, device=x.device)
    amount = strength * (2 * draws[:, :4] - 1) * (draws[:, 4:5] < JITTERED)  # [B, 4]; 0: unchanged
    changes = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    neutral = (1, 1, 1, 0)
    colour = x.shape[1] == 3
    for i in order:
        if colour or i < 2:
            x = changes[i](x, neutral[i] + amount[:, i])
    return torch.lerp(x, grey(x), _each((draws[:, 5] < GREYED).float())) if colour else x


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """factor * x."""
    return (x * _each(factor)).clamp_(0, 1)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Away from (factor > 1) or towards the image's mean grey level."""
    level = grey(x.mean((2, 3), keepdim=True))
    return (x * _each(factor)).add_((1 - _each(factor)) * level).clamp_(0, 1)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Away from (factor > 1) or towards the grey image; three channels."""
    return _blend(x, grey(x), factor)


def adjust_hue(x: Tensor, factor: Tensor) -> Tensor:
    """Turn the hue by factor, -0.5..0.5 of the full circle; three channels.

    A channel is the least of the three plus the chroma times a trapezium of the hue h (in sixths, 0..6): that of
    red is clamp(|h - 3| - 1), of green clamp(2 - |h - 2|), of blue clamp(2 - |h - 4|), clamped to 0..1.
    Smith, SIGGRAPH 1978.
    """
    least, chroma, hue = _least_chroma_hue(x)
    hue.add_(_each(6 * factor))
    hue.sub_((hue / 6).floor_().mul_(6))  # remainder() takes ten times as long
    shares = ((hue - 3).abs_().sub_(1), (hue - 2).abs_().neg_().add_(2), (hue - 4).abs_().neg_().add_(2))
    return torch.cat([share.clamp_(0, 1).mul_(chroma).add_(least) for share in shares], 1)


def grey(x: Tensor) -> Tensor:
    """Grey level of each pixel, [B, 1, H, W]; other than three channels: their mean."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    red, green, blue = x.split(1, 1)
    return (GREY[0] * red).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])


def _least_chroma_hue(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Smallest channel, chroma and hue (-1..5, in sixths of the circle; 0 where grey), [B, 1, H, W] each."""
    red, green, blue = x.split(1, 1)
    value = torch.maximum(torch.maximum(red, green), blue)
    least = torch.minimum(torch.minimum(red, green), blue)
    chroma = value - least
    # 0 for the largest channel and else 1, as numbers: torch.where takes ten times as long as this lerp, which is exact
    not_red, not_green = (value - red).sign_(), (value - green).sign_()
    ahead = torch.lerp(green - blue, torch.lerp(blue - red, red - green, not_green), not_red)
    sixth = (2 + 2 * not_green) * not_red
    return least, chroma, sixth.addcdiv_(ahead, chroma.clamp(min=TINY))


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(other, x, _each(factor)).clamp_(0, 1)


def _each(factor: Tensor) -> Tensor:
    return factor.view(-1, 1, 1, 1)
