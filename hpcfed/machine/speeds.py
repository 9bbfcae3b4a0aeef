"""How fast ranks compute, relative to one another: a cluster may have GPUs of two kinds."""

from collections.abc import Sequence

from hpcfed.core.errors import ConfigError


def of_ranks(given: Sequence[float], node_of: Sequence[int], lost: int = 0) -> list[float]:
    """The speed of each rank, [R]: given for each rank, or for each node; 1 where nothing is given.

    node_of: [R], the node of each rank.  lost: ranks that died; whose factors theirs were is not
    known any more, so where those were given by rank all that are left count as alike.
    Raises ConfigError for another number of factors.
    """
    ranks, nodes = len(node_of), len(set(node_of))
    if len(given) == ranks and not lost:
        return list(given)
    if len(given) == nodes:
        return [given[node] for node in node_of]
    if given and not lost:
        raise ConfigError(
            f"run.speeds has {len(given)} values, but the run has {ranks} ranks on {nodes} nodes; "
            "give one value a rank, or one a node"
        )
    return [1.0] * ranks
