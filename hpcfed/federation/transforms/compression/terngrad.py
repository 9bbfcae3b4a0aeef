"""TernGrad: each value becomes -s, 0 or s at random, where s is the tensor's largest magnitude.

Wen, Xu, Yan, Wu, Wang, Chen and Li, NeurIPS 2017, arXiv:1705.07878. A value v_i is not 0 with
probability |v_i| / s, so that the decoded tensor has the right mean. Five values take one byte, as
3^5 = 243. Deviations: values are not clipped before at 2.5 standard deviations, which would bias
them; the scale is not shared among clients.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from hpcfed.federation.transforms.compression.bits import (
    Reader,
    bytes_of_digits,
    pack_digits,
    unpack_digits,
)
from hpcfed.federation.transforms.compression.codec import Codec, Settings, Shape


class TernGrad(Codec):
    """Each tensor has a scale of its own.

    unbiased: otherwise the scale is multiplied by ||v||^2 / E||decoded||^2, with which the error is
    smallest in the mean, and smaller than v: then what is lost may be added to later messages.
    """

    def __init__(self, unbiased: bool = True, min_size: int = 0) -> None:
        super().__init__(min_size)
        self.unbiased = unbiased

    @classmethod
    def of_job(cls, settings: Settings, unbiased: bool) -> Self:
        return cls(unbiased=unbiased, min_size=settings.min_size)

    def pack(self, x: np.ndarray, generator: np.random.Generator, memory: dict[str, Any]) -> bytes:
        flat = x.ravel()
        scale = np.abs(flat).max()
        nonzero = generator.random(flat.size) * scale < np.abs(flat)  # |v| = s always is
        digits = np.where(nonzero, np.where(flat < 0, 2, 1), 0)
        if not self.unbiased and scale > 0:
            magnitudes = np.abs(flat, dtype=np.float64)
            scale = np.float32((magnitudes**2).sum() / magnitudes.sum())
        return scale.tobytes() + pack_digits(digits)

    def unpack(self, reader: Reader, shape: Shape, generator: Any) -> np.ndarray:
        n = int(np.prod(shape))
        scale = reader.array("f4", 1)[0]
        return np.array([0, scale, -scale], np.float32)[unpack_digits(reader, n)]

    def most_bytes_of(self, shape: Shape) -> int:
        return 4 + bytes_of_digits(int(np.prod(shape)))
