"""Inputs as data sets store them, made ready for models."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from hpcfed.core.errors import DataError


def prepare(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalise images: (x - mean) / std for each channel, where uint8 is first brought to 0..1.

    x: [B, C, H, W], uint8 or float; not changed.  mean, std: C numbers.  Returns [B, C, H, W],
    float32. Without means, as text has none, x is tokens [B, L] and comes back as int64.
    Raises DataError where the number of channels differs.
    """
    return prepare_(x.clone() if x.dtype == torch.float32 else x, mean, std)


def prepare_(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """As prepare, but float32 is overwritten."""
    if not len(mean):
        return x.long()
    if not len(mean) == len(std) == x.shape[1]:
        raise DataError(
            f"images have {x.shape[1]} channels, but {len(mean)} means and {len(std)} stds; make "
            f"them equal"
        )
    centre, scale = _constants(tuple(mean), tuple(std), x.device)
    return floats(x).sub_(centre).div_(scale)


@cache
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Means and deviations on the device, [1, C, 1, 1]; made once, for that takes longer than to
    normalise a batch.
    """
    numbers = (torch.tensor(values, dtype=torch.float32, device=device) for values in (mean, std))
    centre, scale = (v.view(1, -1, 1, 1) for v in numbers)
    return centre, scale


def floats(x: Tensor) -> Tensor:
    return x.float().div_(255) if x.dtype == torch.uint8 else x.float()
