"""Weights of stale results, which were computed from an older model."""

from __future__ import annotations

from typing import Literal


def damping(staleness: int, kind: Literal["const", "poly", "hinge"], a: float, b: int) -> float:
    """Return the weight s(staleness) of a result: 1 for a fresh one, and never rising.

    const: 1.
    poly: (staleness + 1)^-a.
    hinge: 1 up to b, then 1 / (a (staleness - b) + 1).
    Xie et al. (FedAsync), arXiv:1903.03934.
    """
    if kind == "poly":
        return (staleness + 1.0) ** -a
    return 1.0 if kind == "const" or staleness <= b else 1 / (a * (staleness - b) + 1)
