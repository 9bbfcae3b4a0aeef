"""Small rotations, shifts and changes of size: what leaves a digit or a letter the same."""

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from hpcfed.data.crop import uniform


def affine(x: Tensor, g: torch.Generator, degrees: float = 15, shift: float = 0.1, zoom: float = 0.1) -> Tensor:
    """Turn by up to `degrees`, scale by 1 +- zoom, shift by up to `shift` of the size; bilinear, black outside.

    x: [B, C, H, W], float32.  Returns the same shape.
    """
    draws = 2 * uniform(g, len(x), 4, x.device) - 1  # [B, 4]: angle, size, right, down
    angle, size = draws[:, 0] * math.radians(degrees), 1 + draws[:, 1] * zoom
    cos, sin = angle.cos() / size, angle.sin() / size
    right, down = 2 * shift * draws[:, 2], 2 * shift * draws[:, 3]  # affine_grid's images are 2 wide
    matrix = torch.stack([cos, -sin, right, sin, cos, down], 1).view(-1, 2, 3)
    return grid_sample(x, affine_grid(matrix, list(x.shape), align_corners=False), align_corners=False)
