"""Numbers drawn with characters of a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

EIGHTHS = " ▁▂▃▄▅▆▇█"


def bars(
    values: Sequence[float] | np.ndarray, width: int, height: int, low: float, high: float
) -> list[str]:
    """Columns of blocks, `height` lines from top to bottom, at most `width` wide.

    low is an eighth of a block, high the full height.
    """
    span = (high - low) or 1.0
    shares = np.clip((downsample(values, width) - low) / span, 0, 1)
    full = (1 + np.rint(shares * (8 * height - 1))).astype(int)
    return [
        "".join(EIGHTHS[min(8, max(0, n - 8 * row))] for n in full)
        for row in reversed(range(height))
    ]


def downsample(values: Sequence[float] | np.ndarray, width: int) -> np.ndarray:
    """At most so many means of neighbours."""
    return np.array(
        [
            np.mean(part)
            for part in np.array_split(np.asarray(values, float), min(width, len(values)) or 1)
        ]
    )


def spark(values: Sequence[float], width: int) -> str:
    """A curve in one line, from its least value to its greatest."""
    known = [v for v in values if np.isfinite(v)]
    if not known:
        return ""
    shown = downsample(known, width)
    return bars(shown, width, 1, shown.min(), shown.max())[0]


def histogram(values: np.ndarray, bins: int) -> str:
    """How many of the values, shares from 0 to 1, are in each of so many equal parts of that
    range.
    """
    counts, _ = np.histogram(values[np.isfinite(values)], bins, (0.0, 1.0))
    top = max(1, counts.max())
    return "".join(EIGHTHS[int(np.ceil(8 * n / top))] for n in counts)


def parts(amounts: Sequence[float], width: int) -> list[int]:
    """Widths in characters for parts of a bar, together `width`: each its share, rounded so that
    the sum is right.
    """
    total = sum(amounts) or 1.0
    ends = np.rint(np.cumsum(amounts) / total * width).astype(int)
    return np.diff(ends, prepend=0).tolist()
