"""FeSEM: there are several centres, and each client trains on from the centre nearest to its model.

Long et al., World Wide Web 26, 2023, arXiv:2108.08647, algorithm 1.

Deviations: all clients start from one model, so the first centres are chosen among trained models.
They are chosen anew after each round until M clients had trained before it. A client that has not
trained yet starts from centre k mod M. The authors' code has scope = "head" and leaves out clusters
of one client.
"""

from hpcfed import Guide
from hpcfed.algorithms.clusters.em import EM


class FeSEM(EM):
    """Clustered FL by expectation maximisation.

    With one cluster and all clients in each round it is FedAvg of equal weights, bit for bit.
    """

    guide = Guide(
        data="clusters of clients",
        sent="all weights",
        won="FEMNIST and CelebA, above FedAvg and FedProx",
    )
