"""Random crops, resized to the full image, with the flip folded into the same interpolation."""

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

SCALE = (0.2, 1.0)  # share of the image's area
RATIO = (3 / 4, 4 / 3)  # width over height
ATTEMPTS = 10  # draws of area and ratio before the largest central crop is taken


def uniform(g: torch.Generator, n: int, draws: int, device: torch.device) -> Tensor:
    """Uniform numbers in [0, 1), [n, draws], float32: row i belongs to example i."""
    return torch.rand(n, draws, generator=g, device=g.device).to(device)


def resized_crop(x: Tensor, g: torch.Generator, flip: float, scale: tuple[float, float] = SCALE) -> Tensor:
    """Crop each image at random, resize the crop bilinearly to the full size, flip it with probability flip.

    x: [B, C, H, W], float32.  Returns the same shape.  As torchvision's RandomResizedCrop and
    RandomHorizontalFlip, with whole pixels as crop borders.
    """
    draws = uniform(g, len(x), 2 * ATTEMPTS + 3, x.device)
    height, width = x.shape[2:]
    box = _boxes(draws, height, width, scale)
    return crop(x, *box, mirrored=draws[:, -1] < flip)


def crop(x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, mirrored: Tensor) -> Tensor:
    """Cut out box i of image i and resize it bilinearly to the full size; nothing outside the box is seen.

    x: [B, C, H, W].  top, left, height, width: [B], pixels.  mirrored: [B], bool.  Returns [B, C, H, W].
    """
    rows = _positions(top, height, x.shape[2])
    columns = _positions(left, width, x.shape[3])
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    grid = torch.stack(torch.broadcast_tensors(columns[:, None, :], rows[:, :, None]), -1)  # [B, H, W, 2]
    return grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _positions(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Where `size` pixels of the result lie along one axis, [B, size], in grid_sample's -1..1."""
    centres = (torch.arange(size, device=start.device) + 0.5) / size
    pixel = start[:, None] + length[:, None] * centres - 0.5
    pixel = torch.maximum(torch.minimum(pixel, (start + length - 1)[:, None]), start[:, None])
    return (2 * pixel + 1) / size - 1


def _boxes(draws: Tensor, height: int, width: int, scale: tuple[float, float]) -> tuple[Tensor, ...]:
    """top, left, height, width of a crop for each example, [B] each, whole numbers as floats.

    draws: [B, 2 * ATTEMPTS + 2 or more]: areas, ratios, place; the first attempt that fits is taken.
    """
    area = height * width * (scale[0] + (scale[1] - scale[0]) * draws[:, :ATTEMPTS])
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = torch.exp(low + (high - low) * draws[:, ATTEMPTS : 2 * ATTEMPTS])
    w, h = torch.sqrt(area * ratio).round(), torch.sqrt(area / ratio).round()  # [B, ATTEMPTS]
    fits = (0 < w) & (w <= width) & (0 < h) & (h <= height)
    first = fits.int().argmax(1, keepdim=True)
    found = fits.any(1)
    # no attempt fits: the largest central crop whose ratio is allowed
    h = torch.where(found, h.gather(1, first)[:, 0], min(height, round(width / RATIO[0])))
    w = torch.where(found, w.gather(1, first)[:, 0], min(width, round(height * RATIO[1])))
    place = draws[:, 2 * ATTEMPTS : 2 * ATTEMPTS + 2]
    top = torch.where(found, (place[:, 0] * (height - h + 1)).floor(), (height - h) // 2)
    left = torch.where(found, (place[:, 1] * (width - w + 1)).floor(), (width - w) // 2)
    return top, left, h, w
