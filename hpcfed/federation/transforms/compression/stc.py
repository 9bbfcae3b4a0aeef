"""STC, sparse ternary compression: of the k largest values only their signs, and one magnitude.

Sattler, Wiedemann, Mueller and Samek, IEEE TNNLS 2020, arXiv:1903.02891. The magnitude is the mean
of the k magnitudes. k = ceil(share n); the paper sends 1 of 400 values.
"""

from __future__ import annotations

import numpy as np

from hpcfed.core.payload import bytes_of_bits
from hpcfed.federation.transforms.compression.bits import Reader
from hpcfed.federation.transforms.compression.topk import TopK


class STC(TopK):
    """share: of the values that are not 0."""

    def pack_values(self, values: np.ndarray) -> bytes:
        magnitude = np.float32(np.abs(values, dtype=np.float64).mean())
        return magnitude.tobytes() + np.packbits(np.signbit(values)).tobytes()

    def unpack_values(self, reader: Reader, k: int) -> np.ndarray:
        magnitude = reader.array("f4", 1)[0]
        negative = reader.numbers(k, 1).astype(bool)
        return np.where(negative, -magnitude, magnitude)

    def bytes_of_values(self, k: int) -> int:
        return 4 + bytes_of_bits(k)
