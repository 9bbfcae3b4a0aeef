"""QSGD: values rounded at random to a few levels between 0 and the norm of their bucket.

Alistarh, Grubic, Li, Tomioka and Vojnovic, NeurIPS 2017, arXiv:1610.02132. A bucket v of d values
travels as its L2 norm and, for each value, a sign and a level l of 0..s: s |v_i| / ||v|| is rounded
up or down with probabilities by which the decoded value ||v|| sign l / s has the mean v_i.

Deviation: signs and levels have a fixed width, not the paper's Elias codes.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from hpcfed.core.payload import bytes_of_bits
from hpcfed.federation.transforms.compression.bits import Reader, pack, width_of
from hpcfed.federation.transforms.compression.codec import Codec, Settings, Shape


class QSGD(Codec):
    """levels: s, the number of levels beside 0.  bucket: d, the values that have a norm in common.

    With b bits for each value, s = 2^(b - 1) - 1.
    unbiased: otherwise a norm is multiplied by ||v||^2 / E||decoded||^2, with which the error is
    smallest in the mean, and smaller than v: then what is lost may be added to later messages.
    """

    together = True

    def __init__(
        self, levels: int, bucket: int = 512, unbiased: bool = True, min_size: int = 0
    ) -> None:
        super().__init__(min_size)
        self.levels, self.bucket, self.unbiased = levels, bucket, unbiased
        self.width = 1 + width_of(levels + 1)

    @classmethod
    def of_job(cls, settings: Settings, unbiased: bool) -> Self:
        levels = 2 ** (settings.bits - 1) - 1
        return cls(levels, settings.bucket, unbiased=unbiased, min_size=settings.min_size)

    def pack(self, x: np.ndarray, generator: np.random.Generator, memory: dict[str, Any]) -> bytes:
        flat = x.ravel().astype(np.float64)
        starts = np.arange(0, flat.size, self.bucket)
        norms = np.sqrt(np.add.reduceat(flat**2, starts)).astype(np.float32)
        each = np.repeat(norms.astype(np.float64), self.bucket)[: flat.size]
        scaled = np.divide(
            self.levels * np.abs(flat), each, out=np.zeros_like(flat), where=each > 0
        )
        level = np.floor(scaled)
        if not self.unbiased:
            variance = np.add.reduceat((scaled - level) * (1 - scaled + level), starts)
            norms = (norms / (1 + variance / self.levels**2)).astype(np.float32)
        level = np.minimum(level + (generator.random(flat.size) < scaled - level), self.levels)
        negative = np.signbit(flat).astype(np.int64)
        codes = (negative << (self.width - 1)) + level.astype(np.int64)
        return norms.tobytes() + pack(codes, self.width)

    def unpack(self, reader: Reader, shape: Shape, generator: Any) -> np.ndarray:
        n = int(np.prod(shape))
        norms = reader.array("f4", -(-n // self.bucket)).astype(np.float64)
        codes = reader.numbers(n, self.width)
        level = codes & ((1 << (self.width - 1)) - 1)
        x = np.repeat(norms, self.bucket)[:n] * level / self.levels
        return np.where(codes >> (self.width - 1), -x, x).astype(np.float32)

    def most_bytes_of(self, shape: Shape) -> int:
        n = int(np.prod(shape))
        return 4 * -(-n // self.bucket) + bytes_of_bits(n * self.width)
