"""Random-k: k values at random positions, which both sides draw; all others are 0.

Stich, Cordonnier and Jaggi, NeurIPS 2018, arXiv:1809.07599. k = ceil(share n), positions without
replacement. The values are multiplied by n / k, so that the decoded tensor has the right mean,
unless what is lost is added to later messages.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from hpcfed.federation.transforms.compression.bits import Reader
from hpcfed.federation.transforms.compression.codec import Codec, Settings, Shape, count


class RandomK(Codec):
    """share: of the values that are sent.  scaled: they are multiplied by n / k."""

    def __init__(
        self, share: float, scaled: bool = True, together: bool = True, min_size: int = 0
    ) -> None:
        super().__init__(min_size)
        self.share, self.scaled, self.together = share, scaled, together

    @classmethod
    def of_job(cls, settings: Settings, unbiased: bool) -> Self:
        together = settings.per == "message"
        return cls(settings.share, scaled=unbiased, together=together, min_size=settings.min_size)

    def _positions(self, n: int, generator: np.random.Generator) -> np.ndarray:
        return np.sort(generator.choice(n, count(self.share, n), replace=False))

    def pack(self, x: np.ndarray, generator: np.random.Generator, memory: dict[str, Any]) -> bytes:
        flat = x.ravel()
        return flat[self._positions(flat.size, generator)].tobytes()

    def unpack(self, reader: Reader, shape: Shape, generator: np.random.Generator) -> np.ndarray:
        n = int(np.prod(shape))
        positions, x = self._positions(n, generator), np.zeros(n, np.float32)
        values = reader.array("f4", len(positions))
        x[positions] = values * np.float32(n / len(positions)) if self.scaled else values
        return x

    def most_bytes_of(self, shape: Shape) -> int:
        return 4 * count(self.share, int(np.prod(shape)))
