"""Inputs as data sets store them, made ready for models.

The inputs of a batch are one tensor or, where the data have several modalities, a dict of tensors
by modality, [B, ...] each. What has to know the difference stands here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from hpcfed.core.errors import DataError
from hpcfed.core.shapes import Numbers, Shapes, parts

Inputs = Tensor | dict[str, Tensor]


def count(x: Any) -> int:
    """Examples of a batch."""
    return len(parts(x)[0])


def pieces(x: Inputs, sizes: int | list[int]) -> list[Any]:
    """Inputs cut along the examples, as `Tensor.split` cuts."""
    if isinstance(x, Tensor):
        return list(x.split(sizes))
    cut = {name: v.split(sizes) for name, v in x.items()}
    return [dict(zip(cut, row, strict=True)) for row in zip(*cut.values(), strict=True)]


def join(xs: Iterable[Inputs]) -> Any:
    """Batches one after the other; all have the same modalities."""
    xs = list(xs)
    if isinstance(xs[0], Tensor):
        return torch.cat(cast(list[Tensor], xs))
    return {name: torch.cat([cast(dict, x)[name] for x in xs]) for name in xs[0]}


def zeros(
    shape: tuple[int, ...], n: int, vocabulary: int = 0, device: torch.device | str | None = None
) -> Any:
    """n empty examples of this shape, prepared: float32, or int64 where they are tokens."""
    if isinstance(shape, Shapes):
        return {name: zeros(part, n, tokens, device) for name, part, tokens in shape}
    return torch.zeros(n, *shape, dtype=torch.long if vocabulary else torch.float, device=device)


def prepare(x: Any, mean: Numbers, std: Numbers) -> Any:
    """Normalise inputs: (x - mean) / std for each channel, where uint8 is first brought to 0..1.

    x: [B, C, ...], uint8 or float; not changed; images [B, C, H, W], sequences [B, C, L], rows of
    numbers [B, C].  mean, std: C numbers.  Returns float32 of the same shape. Without means, as
    text has none, x is tokens [B, L] and comes back as int64.
    A dict of inputs by modality, with means and deviations by modality, comes back as such a dict.
    Raises DataError where the number of channels differs.
    """
    if isinstance(mean, Mapping):
        deviations = cast(Mapping, std)
        return {name: prepare(v, mean[name], deviations[name]) for name, v in x.items()}
    return prepare_(x.clone() if x.dtype == torch.float32 else x, mean, cast(Sequence, std))


def prepare_(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """As prepare, for one tensor, but float32 is overwritten."""
    if not len(mean):
        return x.long()
    if not len(mean) == len(std) == x.shape[1]:
        raise DataError(
            f"images have {x.shape[1]} channels, but {len(mean)} means and {len(std)} stds; make "
            f"them equal"
        )
    centre, scale = _constants(tuple(mean), tuple(std), x.device, x.dim())
    return floats(x).sub_(centre).div_(scale)


def restore(x: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype) -> Tensor:
    """The inverse of `prepare` for one tensor: examples as they are stored, of this type; bytes are
    rounded to the nearest, between 0 and 255.
    """
    centre, scale = _constants(tuple(mean), tuple(std), x.device, x.dim())
    x = x * scale + centre
    return x.mul(255).round().clamp(0, 255).to(dtype) if dtype == torch.uint8 else x.to(dtype)


@cache
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device, dim: int
) -> tuple[Tensor, Tensor]:
    """Means and deviations on the device, [1, C, 1, ...].

    Made once, for that takes longer than to normalise a batch.
    """
    numbers = (torch.tensor(values, dtype=torch.float32, device=device) for values in (mean, std))
    centre, scale = (v.view(1, -1, *[1] * (dim - 2)) for v in numbers)
    return centre, scale


def floats(x: Tensor) -> Tensor:
    return x.float().div_(255) if x.dtype == torch.uint8 else x.float()
