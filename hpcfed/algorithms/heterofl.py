"""HeteroFL: each client trains the leading slice of the global model that its width allows.

Diao et al., ICLR 2021, arXiv:2010.01264, algorithm 1. Each value is averaged over the clients whose
slice has it; values that nobody has stay. The paper's scaler, static batch normalisation and masked
cross-entropy are switches. Masking by zero logits, where an absent class still counts in the
softmax, is the authors' code's; "drop" is the other reading. Rows of absent classes are not sent.
Deviations: the clients' statistics of static batch normalisation are taken after every round
instead of after the last, by the cohort, each batch counting the same; gradients are not clipped.
"""

from typing import Literal

from hpcfed.algorithms.windows import WindowBased
from hpcfed.training import submodels


class HeteroFL(WindowBased):
    """With all widths 1, without mask and with batch_norm = "aggregate", FedAvg with uniform
    weights, bit for bit.
    """

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean of a value: its number of training examples, or 1."""
    mask: submodels.Mask = "zero"
    """What the logits of classes become that a client has no examples of; none: they and their rows
    are as others.
    """

    def levels(self, fed):
        return submodels.levels(fed)[1:]

    def measured(self, fed):
        return submodels.levels(fed)

    def predict(self, fed, client, state, x):
        return submodels.masked(client.model(x), submodels.held(client, fed.classes), self.mask)
