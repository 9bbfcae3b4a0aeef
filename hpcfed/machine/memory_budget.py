"""Memory that models and uploads take on a rank."""

from collections.abc import Iterable, Mapping

# memory of a round's uploads over their bytes, measured on a CPU with models of 14 MB: 1.01 to 1.3,
# because the memory between them is not always used again
UPLOADS = 1.1


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


def uploads(nbytes: float) -> float:
    """Return the bytes of memory that uploads take on a rank while a round lasts.

    The replay log has them until the round ends, also those of stateless clients. They are neither
    spilled nor limited by run.resident.
    nbytes: of the tensors that the rank's clients of the cohort send in the round.
    """
    return UPLOADS * nbytes
