"""Counts and abbreviated lists for messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np


def evenly(n: int, most: int) -> np.ndarray:
    """Return at most `most` of the positions 0..n-1, evenly spread, including both ends.

    If only one is returned, it is the first.
    """
    return np.linspace(0, n - 1, min(n, most)).round().astype(int)


def count_noun(n: int, thing: str) -> str:
    """Return a count with its noun: `1 client`, `1,000 clients`."""
    return f"{n:,} {thing}{'s' * (n != 1)}"


def count_range(numbers: Collection[int], thing: str) -> str:
    """Return the least and the most of these counts: `1 to 3 clients`, `1 client` if all are 1."""
    least, most = min(numbers), max(numbers)
    return f"{least:,} to {count_noun(most, thing)}" if least < most else count_noun(most, thing)


def cut_middle(text: str, most: int) -> str:
    """Return a text cut in its middle to this maximum number of characters."""
    if len(text) <= most:
        return text
    end = max(0, most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def join_few(things: Sequence[object], most: int, between: str = ", ") -> str:
    """Join the first items, and count the others."""
    more = [f"and {len(things) - most} more"] if len(things) > most else []
    return between.join(map(str, [*things[:most], *more]))
