"""ZFP: error-bounded compression of blocks of four values by a transform and its bit planes.

Lindstrom, IEEE TVCG 2014. No value of a tensor changes by more than the bound times its range,
max - min. The package is zfpy; tensors are compressed as vectors. How many bytes a message has
depends on its values.
"""

from __future__ import annotations

import numpy as np

from hpcfed.federation.transforms.compression.error_bounded import ErrorBounded


class ZFP(ErrorBounded):
    """bound: largest error of a value over the range of its tensor; 0: none, it is lossless."""

    package = "zfpy"

    def compress(self, x: np.ndarray) -> bytes:
        zfpy = self.module()
        tolerance = self.bound * (float(x.max()) - float(x.min()))
        if tolerance > 0:
            return zfpy.compress_numpy(x, tolerance=tolerance)
        return zfpy.compress_numpy(x)

    def decompress(self, data: memoryview, n: int) -> np.ndarray:
        return self.module().decompress_numpy(bytes(data))
