"""How many there are, and a few of many, where nobody would look at all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def evenly(n: int, most: int) -> np.ndarray:
    """At most so many of the places 0..n-1, evenly spread, first and last among them (of one: the
    first).
    """
    return np.linspace(0, n - 1, min(n, most)).round().astype(int)


def count_noun(n: int, thing: str) -> str:
    """So many of a thing: `1 client`, `1,000 clients`."""
    return f"{n:,} {thing}{'s' * (n != 1)}"


def join_few(things: Sequence[object], most: int, between: str = ", ") -> str:
    """The first ones; the others are counted."""
    more = [f"and {len(things) - most} more"] if len(things) > most else []
    return between.join(map(str, [*things[:most], *more]))
