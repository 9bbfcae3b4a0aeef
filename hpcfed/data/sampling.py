"""Sampling without replacement: training subsets, clients' test sets, and public data."""

import numpy as np

from hpcfed.core.errors import DataError


def even_parts(n: int, size: int) -> list[np.ndarray]:
    """Return positions 0..n-1 in parts of at most `size`, as equal as possible; [] for n = 0."""
    return np.array_split(np.arange(n), -(-n // size)) if n else []


def take(labels: np.ndarray, counts: np.ndarray, g: np.random.Generator) -> np.ndarray:
    """Draw counts[c] examples of each class c without replacement, or all if there are fewer.

    labels: [n], 0..C-1.
    counts: [C].
    Returns sorted indices into labels, int64.
    """
    order = g.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # by class, shuffled inside each class
    grouped = labels[order]
    # number of examples of the same class before it
    place = np.arange(len(grouped)) - np.searchsorted(grouped, grouped)
    return np.sort(order[place < counts[grouped]])


def apportion(total: int, weights: np.ndarray) -> np.ndarray:
    """Return whole numbers that add up to total, in proportion to weights (largest remainder).

    weights: [C], >= 0, not all 0.
    Returns [C], int64; each is its exact quota rounded down or up.
    """
    quota = total * weights / weights.sum()
    numbers = np.floor(quota + 1e-9).astype(np.int64)
    missing = total - numbers.sum()
    numbers[np.argsort(numbers - quota, kind="stable")[:missing]] += 1
    return numbers


def limit(labels: np.ndarray, n: int | None, g: np.random.Generator) -> np.ndarray:
    """Draw n examples, every class in proportion.

    n: None, or a number above that of the examples, takes all.
    labels: [m].
    Returns sorted indices.
    Raises DataError for n < 1.
    """
    if n is not None and n < 1:
        raise DataError(
            f"data.train_limit is {n}, so no client would have an example; set at least 1"
        )
    if n is None or n >= len(labels):
        return np.arange(len(labels))
    return take(labels, apportion(n, np.bincount(labels)), g)


def long_tail(labels: np.ndarray, imbalance: float, g: np.random.Generator) -> np.ndarray:
    """Draw imbalance^(-c/(C - 1)) of the examples of class c, at least one.

    labels: [m], 0..C-1.  imbalance: >= 1; 1 takes all.
    Returns sorted indices.
    Cui et al., "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019, section 5.1.
    """
    if imbalance == 1:
        return np.arange(len(labels))
    supply = np.bincount(labels)
    share = imbalance ** -np.linspace(0, 1, len(supply))
    return take(labels, np.maximum(1, (supply * share + 1e-9).astype(np.int64)), g)


def hold_out(
    labels: np.ndarray, part: np.ndarray, share: float, g: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Divide a client's examples into training and validation examples, every class in proportion.

    part: the client's indices into labels, n of them.
    share: share of them for validation, 0..1. The number is rounded down, so that at least one
    example is left for training. Which of equally frequent classes have one more is drawn, or all
    clients would leave out the same ones.
    Returns both parts, sorted.
    """
    n = int(share * len(part) + 1e-9)
    if not n:
        return np.sort(part), part[:0]
    ours = labels[part]
    counts = np.bincount(ours)
    order = g.permutation(len(counts))
    numbers = np.empty_like(counts)
    numbers[order] = apportion(n, counts[order])
    validation = part[take(ours, numbers, g)]
    return np.setdiff1d(part, validation), np.sort(validation)


def public(labels: np.ndarray, size: int, g: np.random.Generator) -> np.ndarray:
    """Draw the public examples uniformly; the clients share only the others.

    labels: [n] of the training split.
    Returns sorted indices, [size].
    Raises DataError if no example is left.
    """
    if not 0 <= size < len(labels):
        raise DataError(
            f"data.public is {size}; it lies in 0..{len(labels) - 1}, for the clients need some"
        )
    return np.sort(g.choice(len(labels), size, replace=False))


def mirror(
    labels_train: np.ndarray,
    part: np.ndarray,
    labels_test: np.ndarray,
    share: float,
    g: np.random.Generator,
) -> np.ndarray:
    """Draw a client's test set, in the class proportions of the client's training examples.

    part: the client's indices into labels_train, n of them.
    labels_test: labels of the test split, which all clients draw from.
    Returns sorted indices into labels_test: share * n of them (rounded down, at least 1), no
    example twice. If the test split has too few examples of a class, the whole set shrinks until
    that class suffices, so that the proportions stay. Classes that the test split lacks entirely
    are left out; if it lacks all of them, the set is empty.

    Deviations: the authors draw with replacement, anew in every round, and round down per class
    (FedClassAvg, github.com/hukla/FedClassAvg, utils.py); a fixed set without repetition has no
    noise.
    """
    size = 1 + max(labels_train.max(initial=0), labels_test.max(initial=0))
    supply = np.bincount(labels_test, minlength=size)
    want = share * np.bincount(labels_train[part], minlength=size) * (supply > 0)  # [C], not whole
    if not want.any():
        return np.empty(0, np.int64)
    shrink = min(1.0, (supply[want > 0] / want[want > 0]).min())
    total = max(1, int(shrink * want.sum() + 1e-9))
    return take(labels_test, apportion(total, want), g)
