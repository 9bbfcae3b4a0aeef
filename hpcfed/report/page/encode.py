"""Arrays as text for a page, deflated and in base64; `files/data.js` is the inverse.

Numbers of runs are exact. Those of clients are many, so each of their curves is quantised to 16,382
steps between its minimum and maximum, which is finer than any screen; each further bit would make a
large page a twentieth larger.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from typing import Any

import numpy as np

STEPS = 16_382  # steps of a curve; the next number stands for nan


def exact(values: np.ndarray) -> dict[str, Any]:
    """Encode numbers [...] as float64, little-endian."""
    return {"shape": list(values.shape), "data": text(np.asarray(values, "<f8").tobytes())}


def curves(values: np.ndarray) -> dict[str, Any]:
    """Encode curves [T, n] in steps, one after the other.

    A value is low [n] + step number * (width [n] / STEPS); nan stays nan. What is stored are
    differences of step numbers from round to round, modulo 65,536: first all low bytes, then all
    high ones, so that zlib can deflate them.
    """
    numbers, low, width = quantise_rows(values.T)
    change = np.diff(numbers, axis=1, prepend=np.uint16(0)).astype("<u2")  # [n, T]; wraps around
    planes = change.reshape(-1).view(np.uint8).reshape(-1, 2).T
    return {
        "shape": list(numbers.shape),
        "data": text(planes.tobytes()),
        "low": exact(low),
        "width": exact(width),
    }


def quantise_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows [n, T] as step numbers, uint16, with minimum and width [n] of each.

    Infinite values become nan.
    """
    known = np.isfinite(rows)
    low = np.where(known, rows, np.inf).min(1, initial=np.inf)
    high = np.where(known, rows, -np.inf).max(1, initial=-np.inf)
    low, high = (np.where(np.isfinite(edge), edge, 0.0) for edge in (low, high))
    width = high - low
    share = (np.where(known, rows, low[:, None]) - low[:, None]) / np.where(width > 0, width, 1.0)[
        :, None
    ]
    return np.where(known, np.rint(share * STEPS), STEPS + 1).astype(np.uint16), low, width


def text(data: bytes) -> str:
    return b64encode(zlib.compress(data, 6)).decode()
