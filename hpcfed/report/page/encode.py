"""Arrays as text for a page, deflated and in base64; `files/data.js` is the inverse."""

from __future__ import annotations

import zlib
from base64 import b64encode
from typing import Any

import numpy as np


def exact(values: np.ndarray) -> dict[str, Any]:
    """Encode numbers [...] as float64, little-endian."""
    return {"shape": list(values.shape), "data": text(np.asarray(values, "<f8").tobytes())}


def curves(values: np.ndarray) -> dict[str, Any]:
    """Encode curves [T, n] as float32, one after the other; infinite values become nan."""
    rows = np.where(np.isfinite(values), values, np.nan).T
    return {"shape": list(rows.shape), "data": text(rows.astype("<f4").tobytes())}


def text(data: bytes) -> str:
    return b64encode(zlib.compress(data, 6)).decode()
