"""Inputs as data sets store them, and their preparation for models.

The inputs of a batch are one tensor or, for data with several modalities, a dict of tensors [B,
...] by modality. The functions here accept both forms.
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
    """Return the number of examples in a batch."""
    return len(parts(x)[0])


def pieces(x: Inputs, sizes: int | list[int]) -> list[Any]:
    """Split inputs along the examples, as `Tensor.split`."""
    if isinstance(x, Tensor):
        return list(x.split(sizes))
    cut = {name: v.split(sizes) for name, v in x.items()}
    return [dict(zip(cut, row, strict=True)) for row in zip(*cut.values(), strict=True)]


def join(xs: Iterable[Inputs]) -> Any:
    """Concatenate batches, which all have the same modalities."""
    xs = list(xs)
    if isinstance(xs[0], Tensor):
        return torch.cat(cast(list[Tensor], xs))
    return {name: torch.cat([cast(dict, x)[name] for x in xs]) for name in xs[0]}


def zeros(
    shape: tuple[int, ...], n: int, vocabulary: int = 0, device: torch.device | str | None = None
) -> Any:
    """Return n empty prepared examples of this shape: float32, or int64 for tokens."""
    if isinstance(shape, Shapes):
        return {name: zeros(part, n, tokens, device) for name, part, tokens in shape}
    return torch.zeros(n, *shape, dtype=torch.long if vocabulary else torch.float, device=device)


def prepare(x: Any, mean: Numbers, std: Numbers) -> Any:
    """Normalise inputs: (x - mean) / std for each channel, after scaling uint8 to 0..1.

    x: [B, C, ...], uint8 or float; not changed. Images are [B, C, H, W], sequences [B, C, L], rows
    of numbers [B, C].
    mean, std: C numbers each. Without means, as for text, x is tokens [B, L], returned as int64.
    Returns float32 of the same shape. A dict of inputs by modality, with means and deviations by
    modality, returns such a dict.
    Raises DataError if the number of channels differs.
    """
    if isinstance(mean, Mapping):
        deviations = cast(Mapping, std)
        return {name: prepare(v, mean[name], deviations[name]) for name, v in x.items()}
    return prepare_(x.clone() if x.dtype == torch.float32 else x, mean, cast(Sequence, std))


def prepare_(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Prepare one tensor as `prepare` does, but overwrite float32."""
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
    """Return stored examples of this type from prepared ones: the inverse of `prepare`.

    x: one tensor. Values for uint8 are rounded to the nearest integer and clamped to 0..255.
    """
    centre, scale = _constants(tuple(mean), tuple(std), x.device, x.dim())
    x = x * scale + centre
    return x.mul(255).round().clamp(0, 255).to(dtype) if dtype == torch.uint8 else x.to(dtype)


@cache
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device, dim: int
) -> tuple[Tensor, Tensor]:
    """Return means and deviations on the device, [1, C, 1, ...].

    They are cached, because making them takes longer than normalising a batch.
    """
    numbers = (torch.tensor(values, dtype=torch.float32, device=device) for values in (mean, std))
    centre, scale = (v.view(1, -1, *[1] * (dim - 2)) for v in numbers)
    return centre, scale


def floats(x: Tensor) -> Tensor:
    return x.float().div_(255) if x.dtype == torch.uint8 else x.float()
