"""The mean of a server's models of several rounds."""

from hpcfed import Params


def add_iterate(mean: Params, x: Params, n: int) -> Params:
    """Return the mean of n models and of model x; mean: that of the n."""
    return mean + (1 / (n + 1)) * (x - mean) if n else x
