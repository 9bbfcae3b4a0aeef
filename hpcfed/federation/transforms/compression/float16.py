"""float16: values rounded to half precision, and bounded to its range, -65504 to 65504."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcfed.federation.transforms.compression.bits import Reader
from hpcfed.federation.transforms.compression.codec import Codec, Shape

LARGEST = 65504.0


class Float16(Codec):
    """Has no settings."""

    contracts = True

    def pack(self, x: np.ndarray, generator: Any, memory: dict[str, Any]) -> bytes:
        return x.clip(-LARGEST, LARGEST).astype(np.float16).tobytes()

    def unpack(self, reader: Reader, shape: Shape, generator: Any) -> np.ndarray:
        return reader.array("f2", int(np.prod(shape))).astype(np.float32)

    def most_bytes_of(self, shape: Shape) -> int:
        return 2 * int(np.prod(shape))
