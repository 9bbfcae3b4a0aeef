"""Random affine augmentation: small rotations, shifts and zooms, for digits and letters."""

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample


def affine(
    x: Tensor,
    draws: Tensor,
    degrees: float = 15,
    shift: float = 0.1,
    zoom: float = 0.1,
) -> Tensor:
    """Rotate by up to `degrees`, scale by 1 +- zoom, and shift by up to `shift` of the size.

    Interpolation is bilinear; pixels from outside are black.
    x: [B, C, H, W], float32.
    draws: [V * B, 4], uniform; row v * B + i belongs to view v of image i.
    Returns [V * B, C, H, W].
    """
    x = x.repeat(len(draws) // len(x), 1, 1, 1)
    draws = 2 * draws - 1  # [V * B, 4]: angle, size, right, down
    angle, size = draws[:, 0] * math.radians(degrees), 1 + draws[:, 1] * zoom
    cos, sin = angle.cos() / size, angle.sin() / size
    # in grid_sample's coordinates images are 2 wide
    right, down = 2 * shift * draws[:, 2], 2 * shift * draws[:, 3]
    return warp(x, torch.stack([cos, -sin, right, sin, cos, down], 1).view(-1, 2, 3))


def warp(x: Tensor, matrix: Tensor) -> Tensor:
    """Sample image i at matrix[i] @ (a, b, 1) for each pixel (a, b), in coordinates -1..1.

    x: [B, C, H, W], float32.
    matrix: [B, 2, 3].
    Returns [B, C, H, W], as affine_grid and grid_sample. It avoids affine_grid's product for each
    pixel, which takes four times as long as the sampling of a small image.
    """
    a, b, start = (part[:, None, None] for part in matrix.unbind(2))  # [B, 1, 1, 2]
    grid = a * _centres(x, 3)[:, None] + (b * _centres(x, 2)[:, None, None] + start)  # [B, H, W, 2]
    return grid_sample(x, grid, align_corners=False)


def _centres(x: Tensor, axis: int) -> Tensor:
    """Return the centres of the pixels along an axis, in -1..1."""
    return torch.arange(0.5, x.shape[axis], device=x.device) * (2 / x.shape[axis]) - 1
