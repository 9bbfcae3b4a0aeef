"""Mean and standard deviation of channels, for normalisation."""

import numpy as np

CHUNK = 4096  # examples at a time, so that no float copy of all images is needed


def moments(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel.

    x: [n, channels, ...].
    Returns two tuples of `channels` numbers, on the 0..1 scale if x is uint8. The deviation of a
    constant channel is 1, so that one can divide by it.
    """
    axes = (0, *range(2, x.ndim))
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    total = square = np.zeros(x.shape[1])
    for start in range(0, len(x), CHUNK):
        part = x[start : start + CHUNK] / np.float64(scale)
        total, square = total + part.sum(axes), square + (part * part).sum(axes)
    count = x.size / x.shape[1]
    mean = total / count
    std = np.sqrt(np.maximum(square / count - mean**2, 0))
    constant = std <= 1e-7 * np.abs(mean)  # rounding of the sums gives as much
    return tuple(mean.tolist()), tuple(np.where(constant, 1.0, std).tolist())
