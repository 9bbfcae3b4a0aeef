"""Bytes that models take on a rank."""

from collections.abc import Iterable, Mapping


def weights(kinds: Iterable[str], size: Mapping[str, int], stateless: bool) -> int:
    """A flat vector per client that keeps one, and a module, its gradient and two moments per
    architecture.

    kinds: architectures of the rank's clients.  size: bytes of each one's weights.
    """
    held = list(kinds)
    return sum(4 * size[kind] for kind in set(held)) + (
        0 if stateless else sum(size[kind] for kind in held)
    )
