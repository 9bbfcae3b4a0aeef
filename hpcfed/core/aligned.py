"""Where tensors begin in a vector that holds several of them.

Each begins at a multiple of 64 bytes, as new memory does. Kernels rely on it: cuDNN's batch
normalisation ends with "misaligned address" for statistics or weights that begin elsewhere, others
take slower ways, and a product of matrices may have other last bits, as after a checkpoint.
"""

import math
from collections.abc import Sequence

from torch import Tensor

BOUNDARY = 64  # bytes
VALUES = BOUNDARY // 4  # of float32


def padded(shape: Sequence[int]) -> int:
    """Return the number of values between a tensor of this shape and the next one in a vector."""
    return -(-math.prod(shape) // VALUES) * VALUES


def cut(vector: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the tensors of these shapes that lie in a vector, one after the other, as views."""
    parts = vector.split([padded(shape) for shape in shapes])
    return [
        part[: math.prod(shape)].view(tuple(shape))
        for part, shape in zip(parts, shapes, strict=True)
    ]
