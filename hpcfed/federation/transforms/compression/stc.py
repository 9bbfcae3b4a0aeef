"""STC, sparse ternary compression: of the k largest values only their signs, and one magnitude.

Sattler, Wiedemann, Mueller and Samek, IEEE TNNLS 2020, arXiv:1903.02891. The magnitude is the mean
of the k magnitudes. k = ceil(share n); the paper sends 1 of 400 values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcfed.federation.transforms.compression.bits import (
    Reader,
    most_bytes,
    pack_positions,
    read_positions,
)
from hpcfed.federation.transforms.compression.codec import Codec, Shape, count
from hpcfed.federation.transforms.compression.topk import largest


class STC(Codec):
    """share: of the values that are not 0."""

    contracts = True

    def __init__(self, share: float, together: bool = True, min_size: int = 0) -> None:
        super().__init__(min_size)
        self.share, self.together = share, together

    def pack(self, x: np.ndarray, generator: Any, memory: dict[str, Any]) -> bytes:
        flat = x.ravel()
        positions = largest(flat, count(self.share, flat.size))
        values = flat[positions]
        magnitude = np.float32(np.abs(values, dtype=np.float64).mean())
        signs = np.packbits(np.signbit(values)).tobytes()
        return magnitude.tobytes() + signs + pack_positions(positions, flat.size)

    def unpack(self, reader: Reader, shape: Shape, generator: Any) -> np.ndarray:
        n = int(np.prod(shape))
        k = count(self.share, n)
        magnitude = reader.array("f4", 1)[0]
        negative = reader.numbers(k, 1).astype(bool)
        x = np.zeros(n, np.float32)
        x[read_positions(reader, k, n)] = np.where(negative, -magnitude, magnitude)
        return x

    def most_bytes_of(self, shape: Shape) -> int:
        n = int(np.prod(shape))
        k = count(self.share, n)
        return 4 + -(-k // 8) + most_bytes(k, n)
