"""ZFP: error-bounded compression of blocks of four values by a transform and its bit planes.

Lindstrom, IEEE TVCG 2014. No value of a tensor changes by more than the bound times its range,
max - min. The package is zfpy; tensors are compressed as vectors. How many bytes a message has
depends on its values.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from hpcfed.core.optional_imports import import_extra
from hpcfed.federation.transforms.compression.bits import Reader
from hpcfed.federation.transforms.compression.codec import Codec, Shape


@cache
def package() -> Any:
    return import_extra("zfpy", "compression", "compression by ZFP")


class ZFP(Codec):
    """bound: largest error of a value over the range of its tensor; 0: none, it is lossless."""

    contracts = True

    def __init__(self, bound: float, min_size: int = 0) -> None:
        super().__init__(min_size)
        self.bound = bound
        package()

    def pack(self, x: np.ndarray, generator: Any, memory: dict[str, Any]) -> bytes:
        tolerance = self.bound * (float(x.max()) - float(x.min()))
        data = (
            package().compress_numpy(x.ravel(), tolerance=tolerance)
            if tolerance > 0
            else package().compress_numpy(x.ravel())
        )
        return np.uint32(len(data)).tobytes() + data

    def unpack(self, reader: Reader, shape: Shape, generator: Any) -> np.ndarray:
        length = int(reader.array("u4", 1)[0])
        return package().decompress_numpy(bytes(reader.bytes(length)))

    def most_bytes_of(self, shape: Shape) -> int:
        return 4 * math.prod(shape)  # longer ones travel as they are
