"""Codecs of other packages that bound the error of each value."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from hpcfed.core.optional_imports import import_extra
from hpcfed.federation.transforms.compression.bits import Reader
from hpcfed.federation.transforms.compression.codec import Codec, Settings, Shape


class ErrorBounded(Codec):
    """Subclasses define `compress` and `decompress`. Tensors are compressed as vectors.

    bound: largest error of a value over the range of its tensor; 0: none, it is lossless.
    package: name of the package, of the extra compression.
    """

    contracts = True
    package = ""

    def __init__(self, bound: float, min_size: int = 0) -> None:
        super().__init__(min_size)
        self.bound = bound
        self.module()

    @classmethod
    def of_job(cls, settings: Settings, unbiased: bool) -> Self:
        return cls(settings.bound, min_size=settings.min_size)

    def module(self) -> Any:
        """Return the package. Raises ConfigError if it is missing."""
        return import_extra(self.package, "compression", f"compression by {type(self).__name__}")

    def compress(self, x: np.ndarray) -> bytes:
        """Encode a vector."""
        raise NotImplementedError

    def decompress(self, data: memoryview, n: int) -> np.ndarray:
        """Return the vector of n values that `compress` has encoded."""
        raise NotImplementedError

    def pack(self, x: np.ndarray, generator: Any, memory: dict[str, Any]) -> bytes:
        data = self.compress(x.ravel())
        return np.uint32(len(data)).tobytes() + data

    def unpack(self, reader: Reader, shape: Shape, generator: Any) -> np.ndarray:
        length = int(reader.array("u4", 1)[0])
        return self.decompress(reader.bytes(length), math.prod(shape))

    def most_bytes_of(self, shape: Shape) -> int:
        return 4 * math.prod(shape)  # longer ones travel as they are
