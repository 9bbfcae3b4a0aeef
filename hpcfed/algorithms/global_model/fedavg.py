"""FedAvg: the mean of locally trained models, weighted by their numbers of examples.

McMahan et al., AISTATS 2017, arXiv:1602.05629, algorithm 1. Float buffers of batch normalisation
are averaged like parameters.

Objective: F_k(w)
Server: w <- sum_k p_k w_k
Round:
1. The server draws a cohort and sends it the model.
2. Each client trains the model on its own examples.
3. It sends the trained model.
4. The server takes the mean, weighted by numbers of examples.

Deviations: weights are renormalised over the clients that report.
"""

from hpcfed import Guide, RoundBased


class FedAvg(RoundBased):
    """Weighted averaging of models; all hooks are the defaults of RoundBased."""

    guide = Guide(
        data="alike to moderately different",
        sent="all weights",
        won="10 to 100 times fewer rounds than FedSGD",
    )
