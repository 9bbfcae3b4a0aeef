"""Memory that models take on a rank."""

from collections.abc import Iterable, Mapping


def weights(kinds: Iterable[str], size: Mapping[str, int], stateless: bool) -> int:
    """Return the bytes of models on a rank.

    These are one flat vector for each client, unless clients are stateless, and for each
    architecture a module, its gradient and two moments.
    kinds: the architectures of the rank's clients.
    size: bytes of the weights of each architecture.
    """
    architectures = list(kinds)
    return sum(4 * size[kind] for kind in set(architectures)) + (
        0 if stateless else sum(size[kind] for kind in architectures)
    )
