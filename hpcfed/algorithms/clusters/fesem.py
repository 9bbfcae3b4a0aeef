"""FeSEM: there are several centres, and each client trains on from the centre nearest to its model.

Long et al., World Wide Web 26, 2023, arXiv:2108.08647, algorithm 1.

Objective: F_k(w) + lam ||w - c_m||^2
Server: m_k <- argmin_m ||w_k - c_m||; c_m <- mean_(k: m_k = m) w_k
Round:
1. The server sends each client of the cohort the centre of its cluster.
2. The client trains on from there and sends its model.
3. E: each client that has ever sent is assigned to the centre nearest to its last model.
4. M: each centre becomes the mean of its clients' last models, also of those not in the cohort.

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
