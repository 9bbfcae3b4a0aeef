"""Random resized crops, with the flip in the same interpolation."""

import math

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

SCALE = (0.2, 1.0)  # share of the image's area
RATIO = (3 / 4, 4 / 3)  # width over height
ATTEMPTS = 10  # draws of area and ratio before the largest central crop is taken
DRAWS = 2 * ATTEMPTS + 3  # areas, ratios, place, flip


def uniform(g: torch.Generator, n: int, draws: int, device: torch.device) -> Tensor:
    """Draw uniform numbers in [0, 1), [n, draws], float32; row i belongs to example i."""
    return torch.rand(n, draws, generator=g, device=g.device).to(device)


def resized_crop(
    x: Tensor, draws: Tensor, flip: float, scale: tuple[float, float] = SCALE
) -> Tensor:
    """Crop each image at random, resize the crop bilinearly, and flip it with probability `flip`.

    x: [B, C, H, W], float32.
    draws: [V * B, DRAWS], uniform; row v * B + i belongs to view v of image i.
    Returns [V * B, C, H, W], as torchvision's RandomResizedCrop and RandomHorizontalFlip, with
    whole pixels as crop borders.
    """
    height, width = x.shape[2:]
    top, left, tall, wide = _boxes(draws, height, width, scale)
    return crop(x, top, left, tall, wide, mirrored=draws[:, -1] < flip)


def crop(
    x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, mirrored: Tensor
) -> Tensor:
    """Cut box i out of image i modulo B and resize it bilinearly to the full size.

    Pixels outside the box have no influence.
    x: [B, C, H, W], float32.
    top, left, height, width: [V * B], pixels.
    mirrored: [V * B], bool.
    Returns [V * B, C, H, W]. The sides of boxes are parallel to the axes, so rows and columns are
    interpolated one after the other, in 0.6 of grid_sample's time.
    """
    down, right = _positions(top, height, x.shape[2]), _positions(left, width, x.shape[3])
    right = torch.where(mirrored[:, None], right.flip(1), right)
    return _columns(_rows(x, down), right).view(-1, *x.shape[1:])


def _positions(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Return the positions of `size` result pixels along one axis of the image, [V * B, size].

    The unit is one pixel of the image.
    """
    start, end = start[:, None], (start + length - 1)[:, None]
    centres = torch.arange(0.5, size, device=start.device) / size
    return torch.addcmul(start - 0.5, length[:, None], centres).clamp_(start, end)


def _rows(x: Tensor, at: Tensor) -> Tensor:
    """Interpolate rows of [B, C, H, W] at the heights `at`, [V * B, H].

    Returns [V * B, C * H, W]. A row is the weighted sum of two rows of the image, which
    embedding_bag computes.
    """
    n, channels, height, width = x.shape
    # [V * B, H, 2]; the rows above and below
    pair = at.floor()[:, :, None] + torch.arange(2, device=x.device)
    weights = _weights(at[:, :, None] - pair)[:, None].expand(-1, channels, -1, -1)
    top = height * torch.arange(n * channels, device=x.device).view(n, channels).repeat(
        len(at) // n, 1
    )
    rows = top[:, :, None, None] + pair.clamp_(max=height - 1).long()[:, None]  # [V * B, C, H, 2]
    summed = embedding_bag(
        rows.view(-1, 2),
        x.reshape(-1, width),
        mode="sum",
        per_sample_weights=weights.reshape(-1, 2),
    )
    return summed.view(len(at), -1, width)


def _columns(rows: Tensor, at: Tensor) -> Tensor:
    """Interpolate the columns of rows [V * B, C * H, W] at the widths `at`, [V * B, W].

    Returns the same shape.
    """
    columns = torch.arange(rows.shape[2], device=rows.device)
    return torch.bmm(rows, _weights(at[:, None] - columns[:, None]))


def _weights(distance: Tensor) -> Tensor:
    """Return the bilinear weights of pixels at this distance; overwrites it."""
    return distance.abs_().neg_().add_(1).clamp_(min=0)


def _boxes(
    draws: Tensor, height: int, width: int, scale: tuple[float, float]
) -> tuple[Tensor, ...]:
    """Return top, left, height and width of a crop for each example, [B] each.

    They are whole numbers as floats.
    draws: [B, DRAWS], areas, ratios and position; the first attempt that fits is taken.
    """
    area = height * width * (scale[0] + (scale[1] - scale[0]) * draws[:, :ATTEMPTS])
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = torch.exp(low + (high - low) * draws[:, ATTEMPTS : 2 * ATTEMPTS])
    w, h = torch.sqrt(area * ratio).round(), torch.sqrt(area / ratio).round()  # [B, ATTEMPTS]
    fits = (0 < w) & (w <= width) & (0 < h) & (h <= height)
    attempt = fits.int().argmax(1, keepdim=True)
    any_fits = fits.any(1)
    # no attempt fits: the largest central crop whose ratio is allowed
    h = torch.where(any_fits, h.gather(1, attempt)[:, 0], min(height, round(width / RATIO[0])))
    w = torch.where(any_fits, w.gather(1, attempt)[:, 0], min(width, round(height * RATIO[1])))
    place = draws[:, 2 * ATTEMPTS : 2 * ATTEMPTS + 2]
    top = torch.where(any_fits, (place[:, 0] * (height - h + 1)).floor(), (height - h) // 2)
    left = torch.where(any_fits, (place[:, 1] * (width - w + 1)).floor(), (width - w) // 2)
    return top, left, h, w
