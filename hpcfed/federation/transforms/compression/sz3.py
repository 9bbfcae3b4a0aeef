"""SZ3: error-bounded compression by prediction, quantisation and entropy coding.

Liang et al., IEEE Transactions on Big Data 2023, arXiv:2111.02925; for federated learning: Wilkins
et al., ICDCS 2024, arXiv:2312.13461 (FedSZ). No value of a tensor changes by more than the bound
times its range, max - min. The package is pysz; tensors are compressed as vectors, because
neighbouring weights are not alike. How many bytes a message has depends on its values, and may
differ between versions and machines.
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
    return import_extra("pysz", "compression", "compression by SZ3")


class SZ3(Codec):
    """bound: largest error of a value over the range of its tensor; 0: none, it is lossless."""

    contracts = True

    def __init__(self, bound: float, min_size: int = 0) -> None:
        super().__init__(min_size)
        self.bound = bound
        package()

    def pack(self, x: np.ndarray, generator: Any, memory: dict[str, Any]) -> bytes:
        pysz = package()
        config = pysz.szConfig()
        if self.bound:
            config.errorBoundMode = pysz.szErrorBoundMode.REL
            config.relErrorBound = self.bound
        else:
            config.cmprAlgo = pysz.szAlgorithm.LOSSLESS
        data = pysz.sz.compress(x.ravel(), config)[0].tobytes()
        return np.uint32(len(data)).tobytes() + data

    def unpack(self, reader: Reader, shape: Shape, generator: Any) -> np.ndarray:
        length = int(reader.array("u4", 1)[0])
        data = np.frombuffer(reader.bytes(length), np.uint8).copy()
        return package().sz.decompress(data, np.float32, (math.prod(shape),))[0]

    def most_bytes_of(self, shape: Shape) -> int:
        return 4 * math.prod(shape)  # longer ones travel as they are
