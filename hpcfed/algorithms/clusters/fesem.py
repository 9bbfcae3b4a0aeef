"""FeSEM: several centres; each client trains on from the centre that its model is nearest to.

Long et al., World Wide Web 26, 2023, arXiv:2108.08647, algorithm 1. Deviations: as all start from
one model, centres are sought among trained ones, after each round until M clients had trained
before it; a client that has not trained yet starts from centre k mod M. The authors' code has scope
= "head" and leaves out clusters of one.
"""

from hpcfed.algorithms.clusters.em import EM


class FeSEM(EM):
    """With one cluster and all clients in each round it is FedAvg of equal weights, bit for bit."""
