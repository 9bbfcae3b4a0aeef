"""int8: whole numbers from -127 to 127 times a scale, the tensor's largest magnitude over 127."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcfed.federation.transforms.compression.bits import Reader
from hpcfed.federation.transforms.compression.codec import Codec, Shape


class Int8(Codec):
    """Has no settings; each tensor has a scale of its own."""

    contracts = True

    def pack(self, x: np.ndarray, generator: Any, memory: dict[str, Any]) -> bytes:
        scale = np.abs(x).max() / np.float32(127)
        scale = scale if scale > 0 else np.float32(1)
        numbers = np.rint(x.astype(np.float64) / scale).clip(-127, 127)
        return scale.tobytes() + numbers.astype(np.int8).tobytes()

    def unpack(self, reader: Reader, shape: Shape, generator: Any) -> np.ndarray:
        scale = reader.array("f4", 1)[0]
        return reader.array("i1", int(np.prod(shape))).astype(np.float32) * scale

    def most_bytes_of(self, shape: Shape) -> int:
        return 4 + int(np.prod(shape))
