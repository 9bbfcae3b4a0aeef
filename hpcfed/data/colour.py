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
    return torch.where((draws[:, 5] < GREYED).view(-1, 1, 1, 1), grey(x), x) if colour else x


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """factor * x."""
    return (x * _each(factor)).clamp_(0, 1)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Away from (factor > 1) or towards the image's mean grey level."""
    return _blend(x, grey(x).mean((1, 2, 3), keepdim=True), factor)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Away from (factor > 1) or towards the grey image; three channels."""
    return _blend(x, grey(x), factor)


def adjust_hue(x: Tensor, factor: Tensor) -> Tensor:
    """Turn the hue by factor, -0.5..0.5 of the full circle; three channels.

    Channel n of hue h (in sixths), value v and chroma c is v - c * max(0, min(k, 4 - k, 1)) with
    k = (n + h) mod 6 and n = 5, 3, 1 for red, green, blue.  Smith, SIGGRAPH 1978.
    """
    value, chroma, hue = _hsv(x)
    shift = torch.tensor([5.0, 3.0, 1.0], device=x.device).view(1, 3, 1, 1)
    k = (shift + hue + _each(6 * factor)).remainder_(6)  # [B, 3, H, W]
    return torch.minimum(k, 4 - k).clamp_(0, 1).mul_(chroma).neg_().add_(value)


def grey(x: Tensor) -> Tensor:
    """Grey level of each pixel, [B, 1, H, W]; other than three channels: their mean."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    red, green, blue = x.split(1, 1)
    return GREY[0] * red + GREY[1] * green + GREY[2] * blue


def _hsv(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, chroma and hue (0..6, in sixths of the circle; 0 where grey), [B, 1, H, W] each."""
    red, green, blue = x.split(1, 1)
    value = x.amax(1, keepdim=True)
    chroma = value - x.amin(1, keepdim=True)
    safe = torch.where(chroma > 0, chroma, 1)
    hue = torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    return value, chroma, torch.where(value == red, (green - blue) / safe, hue)


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    factor = _each(factor)
    return (x * factor + (1 - factor) * other).clamp_(0, 1)


def _each(factor: Tensor) -> Tensor:
    return factor.view(-1, 1, 1, 1)
