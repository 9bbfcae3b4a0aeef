"""Top-k: the k values of the largest magnitude, and their positions; all others are 0.

Aji and Heafield, EMNLP 2017, arXiv:1704.05021. k = ceil(share n). Of equal magnitudes those of the
lowest positions are taken.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from hpcfed.federation.transforms.compression.bits import (
    Reader,
    most_bytes,
    pack_positions,
    read_positions,
)
from hpcfed.federation.transforms.compression.codec import Codec, Settings, Shape, count


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """Return the positions of the k largest magnitudes of a vector, ascending."""
    if k >= len(x):
        return np.arange(len(x))
    magnitudes = np.abs(x)
    threshold = np.partition(magnitudes, len(x) - k)[len(x) - k]
    above = np.flatnonzero(magnitudes > threshold)
    equal = np.flatnonzero(magnitudes == threshold)[: k - len(above)]
    return np.sort(np.append(above, equal))


class TopK(Codec):
    """share: of the values that are sent."""

    contracts = True

    def __init__(self, share: float, together: bool = True, min_size: int = 0) -> None:
        super().__init__(min_size)
        self.share, self.together = share, together

    @classmethod
    def of_job(cls, settings: Settings, unbiased: bool) -> Self:
        return cls(settings.share, together=settings.per == "message", min_size=settings.min_size)

    def pack(self, x: np.ndarray, generator: Any, memory: dict[str, Any]) -> bytes:
        flat = x.ravel()
        positions = largest(flat, count(self.share, flat.size))
        return self.pack_values(flat[positions]) + pack_positions(positions, flat.size)

    def unpack(self, reader: Reader, shape: Shape, generator: Any) -> np.ndarray:
        n = int(np.prod(shape))
        k = count(self.share, n)
        values, x = self.unpack_values(reader, k), np.zeros(n, np.float32)
        x[read_positions(reader, k, n)] = values
        return x

    def most_bytes_of(self, shape: Shape) -> int:
        n = int(np.prod(shape))
        k = count(self.share, n)
        return self.bytes_of_values(k) + most_bytes(k, n)

    def pack_values(self, values: np.ndarray) -> bytes:
        """Encode the values that are sent."""
        return values.tobytes()

    def unpack_values(self, reader: Reader, k: int) -> np.ndarray:
        """Return the k values that `pack_values` has written."""
        return reader.array("f4", k)

    def bytes_of_values(self, k: int) -> int:
        """Return the bytes that `pack_values` writes for k values."""
        return 4 * k
