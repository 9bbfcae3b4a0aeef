"""SZ3: error-bounded compression by prediction, quantisation and entropy coding.

Liang et al., IEEE Transactions on Big Data 2023, arXiv:2111.02925; for federated learning: Wilkins
et al., ICDCS 2024, arXiv:2312.13461 (FedSZ). No value of a tensor changes by more than the bound
times its range, max - min. The package is pysz; tensors are compressed as vectors, because
neighbouring weights are not alike. How many bytes a message has depends on its values, and may
differ between versions and machines.
"""

from __future__ import annotations

import numpy as np

from hpcfed.federation.transforms.compression.error_bounded import ErrorBounded


class SZ3(ErrorBounded):
    """bound: largest error of a value over the range of its tensor; 0: none, it is lossless."""

    package = "pysz"

    def compress(self, x: np.ndarray) -> bytes:
        pysz = self.module()
        config = pysz.szConfig()
        if self.bound:
            config.errorBoundMode = pysz.szErrorBoundMode.REL
            config.relErrorBound = self.bound
        else:
            config.cmprAlgo = pysz.szAlgorithm.LOSSLESS
        return pysz.sz.compress(x, config)[0].tobytes()

    def decompress(self, data: memoryview, n: int) -> np.ndarray:
        code = np.frombuffer(data, np.uint8).copy()
        return self.module().sz.decompress(code, np.float32, (n,))[0]
