"""Relative speeds of ranks: a cluster may have GPUs of two kinds."""

from collections.abc import Sequence

from hpcfed.core.errors import ConfigError


def of_ranks(factors: Sequence[float], node_of: Sequence[int], lost: int = 0) -> list[float]:
    """Return the speed of each rank, [R].

    factors: one factor for each rank, or one for each node; empty for equal speeds.
    node_of: [R], the node of each rank.
    lost: the number of ranks that died. If factors were given by rank, they can no longer be
    assigned after a death, so all remaining ranks count as equal.
    Raises ConfigError for another number of factors.
    """
    ranks, nodes = len(node_of), len(set(node_of))
    if len(factors) == ranks and not lost:
        return list(factors)
    if len(factors) == nodes:
        return [factors[node] for node in node_of]
    if factors and not lost:
        raise ConfigError(
            f"run.speeds has {len(factors)} values, but the run has {ranks} ranks on {nodes} "
            "nodes; give one value per rank, or one per node"
        )
    return [1.0] * ranks
