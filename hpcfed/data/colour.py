"""Colour changes for a batch of images, in place, with a factor for each image.

x: [B, C, H, W], float32, 0..1, overwritten.
factor: [B].
All functions but `grey` return x. They compute what the functions of the same names (without the
underscore) in torchvision.transforms.v2.functional compute for one factor.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

# weights of red, green, blue; ITU-R BT.601 as torchvision rounds them
GREY = (0.2989, 0.587, 0.114)
STRENGTH = (0.4, 0.4, 0.4, 0.1)  # of brightness, contrast, saturation, hue
NEUTRAL = (1, 1, 1, 0)  # the factors that change nothing
JITTERED, GREYED = 0.8, 0.2  # probabilities
DRAWS = 6  # one for each change, whether to change, whether to turn grey
PRIMARIES = (0, 2, -2)  # hues of red, green, blue in sixths of the circle
TINY = 1e-30  # divisor for pixels without chroma


def jitter_(x: Tensor, order: Sequence[int], draws: Tensor) -> Tensor:
    """Jitter brightness, contrast, saturation and hue with probability 0.8, turn grey with 0.2.

    order: order of the four changes, a permutation of 0..3.
    draws: [B, DRAWS], uniform.
    Saturation, hue and grey need three channels; otherwise they are left out. Sources: see
    `hpcfed.data.augment.simclr`.
    """
    factors, channels = _factors(draws), x.shape[1]
    for i in order:
        if applies(i, channels):
            CHANGES[i](x, factors[i])
    return _turn_grey(x, draws)


def jitter_each_(x: Tensor, orders: Sequence[Sequence[int]], draws: Tensor) -> Tensor:
    """Jitter as `jitter_` does, with an order of its own for each image.

    orders: [B]. Each of the four times the images are sorted by their change, so that a change is
    made in place, to neighbours, and the number of operations does not depend on that of images. To
    write to scattered images, a GPU sorts them for each write.
    """
    factors, channels = _factors(draws), x.shape[1]
    images, at = x, np.arange(len(x))  # images lie sorted by their change; at: which lies where
    for turn in np.array(orders).T:  # [B], the change of each image
        order = np.argsort(turn[at], kind="stable")
        at = at[order]
        to, which = torch.from_numpy(np.stack([order, at])).to(x.device, non_blocking=True)
        images, begin = images[to], 0
        for i, count in enumerate(np.bincount(turn, minlength=len(CHANGES)).tolist()):
            part = slice(begin, begin + count)
            if count and applies(i, channels):
                CHANGES[i](images[part], factors[i][which[part]])
            begin += count
    back = torch.from_numpy(np.argsort(at)).to(x.device, non_blocking=True)
    return _turn_grey(x.copy_(images[back]), draws)


def _factors(draws: Tensor) -> Sequence[Tensor]:
    """Return the factor of each change, [B] each; neutral where nothing is to change."""
    changed = draws[:, 4:5] < JITTERED
    amount = (2 * draws[:, :4] - 1) * changed * _numbers(STRENGTH, draws.device)  # [B, 4]
    return amount.add_(_numbers(NEUTRAL, draws.device)).unbind(1)


def _turn_grey(x: Tensor, draws: Tensor) -> Tensor:
    """Turn some images grey, in place, where there are colours."""
    return x.lerp_(grey(x), _each((draws[:, 5] < GREYED).float())) if x.shape[1] == 3 else x


def applies(i: int, channels: int) -> bool:
    """Return whether a change is made to images of these channels."""
    return channels == 3 or i < 2


def adjust_brightness_(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply x by the factor."""
    return x.mul_(_each(factor)).clamp_(0, 1)


def adjust_contrast_(x: Tensor, factor: Tensor) -> Tensor:
    """Move away from (factor > 1) or towards the image's mean grey level."""
    level = grey(x.mean((2, 3), keepdim=True))
    # lerp_ takes seven times as long
    return x.mul_(_each(factor)).add_(level.mul_(1 - _each(factor))).clamp_(0, 1)


def adjust_saturation_(x: Tensor, factor: Tensor) -> Tensor:
    """Move away from (factor > 1) or towards the grey image; three channels."""
    return x.lerp_(grey(x), 1 - _each(factor)).clamp_(0, 1)


def adjust_hue_(x: Tensor, factor: Tensor) -> Tensor:
    """Rotate the hue by factor, -1/3..1/3 of the full circle; three channels.

    A channel is the minimum of the three plus the chroma times 2 - d, clamped to 0..1. Here d,
    0..3, is the distance on the circle, in sixths, from the hue to the channel's own.
    Smith, SIGGRAPH 1978.
    """
    hue, chroma, least = _hue_chroma_least(x)
    away = 6 * _each(factor) - _numbers(PRIMARIES, x.device).view(3, 1, 1)  # [B, 3, 1, 1]
    torch.add(hue, away, out=x)  # x: distance from each primary, -7..7; | |x| - 3 | is 3 - d
    return x.abs_().sub_(3).abs_().clamp_(1, 2).mul_(chroma).add_(least.sub_(chroma))


# in the order of STRENGTH and NEUTRAL
CHANGES = (adjust_brightness_, adjust_contrast_, adjust_saturation_, adjust_hue_)


def grey(x: Tensor) -> Tensor:
    """Return the grey level of each pixel, [B, 1, H, W].

    This is the mean of the channels unless there are three.
    """
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    red, green, blue = x.split(1, 1)
    return (GREY[0] * red).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])


def _hue_chroma_least(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue, chroma and smallest channel, [B, 1, H, W] each.

    The hue is in sixths of the circle, -3..3, and arbitrary for grey pixels. The usual three cases
    are one formula: 1 + (green + blue - red - least) / chroma sixths from red, towards green if
    green >= blue, else towards blue.
    """
    red, green, blue = x.split(1, 1)
    least, most = torch.minimum(red, green), torch.maximum(red, green)
    chroma = torch.maximum(most, blue, out=most).sub_(torch.minimum(least, blue, out=least))
    hue = (green + blue).sub_(red).sub_(least).div_(chroma.clamp(min=TINY)).add_(1)
    return hue.copysign_(green - blue), chroma, least


def _each(factor: Tensor) -> Tensor:
    return factor.view(-1, 1, 1, 1)


@cache
def _numbers(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return the values as a cached tensor on the device.

    Making it costs as much as a change of a small batch.
    """
    return torch.tensor(values, dtype=torch.float32, device=device)
