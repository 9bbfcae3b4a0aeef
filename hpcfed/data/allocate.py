"""Allocation of the examples of each class to clients, in whole numbers within the supply."""

from itertools import chain

import numpy as np

EPS = 1e-6  # examples; smaller differences are rounding


def allocate(
    mix: np.ndarray, supply: np.ndarray, size: int, spill: bool, g: np.random.Generator
) -> np.ndarray:
    """Give every client `size` examples in its class proportions, as far as the supply allows.

    mix: [K, C], >= 0; row k holds the class proportions of client k.
    supply: [C], examples of each class.
    spill: whether a client whose classes are exhausted takes from the others. Then every client
    gets exactly `size`, provided that K * size <= supply.sum().
    Returns [K, C], int64, with column sums <= supply.

    All clients request at once. If the requests for a class exceed its supply, all of them are
    reduced by the same factor. The clients request what they lack from the classes that have
    examples left, again in their own proportions, until no client lacks any. So no client has
    priority.
    """
    return _whole(_fill(mix, supply, size, spill), mix, supply, size, spill, g)


def _fill(mix: np.ndarray, supply: np.ndarray, size: int, spill: bool) -> np.ndarray:
    """Return the allocation in fractions, [K, C].

    Each pass satisfies all clients or empties a class.
    """
    got = np.zeros_like(mix)
    for _ in range(len(supply) + 1):  # more passes are never needed
        left = np.maximum(supply - got.sum(0), 0)
        left[left < EPS] = 0
        ask = mix * (left > 0)
        total = ask.sum(1, keepdims=True)
        other = left / max(left.sum(), EPS) if spill else np.zeros_like(left)
        ask = np.where(total > 0, ask / np.where(total > 0, total, 1), other)
        ask *= (size - got.sum(1))[:, None]
        more = got + ask * np.minimum(1, left / np.maximum(ask.sum(0), EPS * EPS))
        if np.array_equal(more, got):
            break
        got = more
    return got


def _whole(
    got: np.ndarray,
    mix: np.ndarray,
    supply: np.ndarray,
    size: int,
    spill: bool,
    g: np.random.Generator,
) -> np.ndarray:
    """Round down, then add the missing examples one by one.

    Clients come in random order, and their classes with the largest fraction first.
    """
    counts = np.floor(got + EPS).astype(np.int64)
    left, missing = supply - counts.sum(0), size - counts.sum(1)
    for k in g.permutation(len(counts)):
        order = [c for c in np.argsort(counts[k] - got[k], kind="stable") if spill or mix[k, c] > 0]
        # first one of each class, then more
        for c, most in chain(((c, 1) for c in order), ((c, size) for c in order)):
            if not missing[k]:
                break
            extra = min(missing[k], left[c], most)
            counts[k, c] += extra
            left[c] -= extra
            missing[k] -= extra
    return counts


def deal(labels: np.ndarray, counts: np.ndarray, g: np.random.Generator) -> list[np.ndarray]:
    """Draw counts[k, c] examples of class c for client k; no example goes to two clients.

    labels: [n].
    counts: [K, C], with column sums within the supply.
    Returns K index arrays.
    """
    nobody, classes = counts.shape
    supply = np.bincount(labels, minlength=classes)
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(supply)[:-1])
    shuffled = np.concatenate([g.permutation(members) for members in by_class])
    # [C, K + 1], the last column for examples that no client gets
    shares = np.vstack([counts, supply - counts.sum(0)]).T
    # the client of each shuffled example
    owner = np.repeat(np.tile(np.arange(nobody + 1), classes), shares.ravel())
    return [shuffled[owner == k] for k in range(nobody)]
