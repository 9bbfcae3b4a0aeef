"""Signs: one bit a value, and one magnitude for each tensor.

Karimireddy, Rebjock, Stich and Jaggi, ICML 2019, arXiv:1901.09847 (EF-sign): the magnitude is the
tensor's mean magnitude, which travels too. With `eta` it is fixed instead. The server takes the
method's mean of what clients send; for the majority of signs see `vote`. One bit has no 0: that is
+1.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from hpcfed.core.payload import bytes_of_bits
from hpcfed.federation.transforms.compression.bits import Reader
from hpcfed.federation.transforms.compression.codec import Codec, Settings, Shape


class Sign(Codec):
    """eta: the magnitude of all values; None: the mean magnitude of each tensor."""

    def __init__(self, eta: float | None = None, min_size: int = 0) -> None:
        super().__init__(min_size)
        self.eta = eta
        self.contracts = eta is None  # a fixed magnitude may be longer than the tensor

    @classmethod
    def of_job(cls, settings: Settings, unbiased: bool) -> Self:
        return cls(settings.eta, min_size=settings.min_size)

    def pack(self, x: np.ndarray, generator: Any, memory: dict[str, Any]) -> bytes:
        signs = np.packbits(x.ravel() < 0).tobytes()
        if self.eta is not None:
            return signs
        return np.float32(np.abs(x, dtype=np.float64).mean()).tobytes() + signs

    def unpack(self, reader: Reader, shape: Shape, generator: Any) -> np.ndarray:
        magnitude = reader.array("f4", 1)[0] if self.eta is None else np.float32(self.eta)
        negative = reader.numbers(int(np.prod(shape)), 1).astype(bool)
        return np.where(negative, -magnitude, magnitude)

    def most_bytes_of(self, shape: Shape) -> int:
        return (4 if self.eta is None else 0) + bytes_of_bits(int(np.prod(shape)))
