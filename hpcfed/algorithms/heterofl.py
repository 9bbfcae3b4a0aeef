"""HeteroFL: each client trains the leading slice of the global model that its width allows.

Diao et al., ICLR 2021, arXiv:2010.01264, algorithm 1. Each value is averaged over the clients whose slice has it;
values that nobody has stay. The paper's scaler, static batch normalisation and masked cross-entropy are switches.
Masking by zero logits, where an absent class still counts in the softmax, is the authors' code's; "-inf" is the
other reading. Rows of absent classes are not sent. Deviations: the clients' statistics of static batch normalisation
are taken after every round instead of after the last, by the cohort, each batch counting the same; gradients are not
clipped.
"""

from functools import partial
from typing import ClassVar, Literal

import torch.nn.functional as F

from hpcfed.algorithms.base import RoundBased
from hpcfed.training import submodels
from hpcfed.training.local import sgd


class HeteroFL(RoundBased):
    """With all widths 1, without mask and with batch_norm = "aggregate", FedAvg with uniform weights, bit for bit."""

    accepts: ClassVar[str] = "widths"

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean of a value: its number of training examples, or 1."""
    scaler: bool = True
    """Multiply the outputs of hidden layers by 1 / width while training."""
    mask: submodels.Mask = "zero"
    """What the logits of classes become that a client has no examples of; none: they and their rows are as others."""
    batch_norm: Literal["static", "aggregate"] = "static"
    """Statistics for evaluation: taken anew for each width by one more pass, or averaged like weights."""
    assignment: submodels.Assignment = "fix"
    """Clients keep their width, or draw one of models.widths for each round."""

    def traffic(self, fed, k):
        return submodels.announced(fed, k, self.mask, self.assignment)

    def architecture(self, fed, k, t):
        return submodels.level(fed, k, t, self.assignment)

    def levels(self, fed):
        return submodels.levels(fed)[1:]

    def init(self, fed):
        return submodels.start(fed, submodels.levels(fed) if self.batch_norm == "static" else ())

    def whole(self, fed):
        return True

    def offer(self, fed, client, state):
        return submodels.piece(client, state, submodels.window(fed, client.architecture))

    def loss(self, client, state, model, x, y):
        logits = model(x)
        return F.cross_entropy(submodels.masked(logits, submodels.held(client, logits.shape[1]), self.mask), y)

    def predict(self, fed, client, state, x):
        return submodels.masked(client.model(x), submodels.held(client, fed.classes), self.mask)

    def local(self, fed, client, state, t):
        given = self.offer(fed, client, state)
        self.receive(client, fed.down(client, given))
        with submodels.scaled(client, self.scaler):
            sgd(fed, client, t, partial(self.loss, client, given), views=self.views)
        rows = None if self.mask == "none" else submodels.held(client, fed.classes)
        return submodels.upload(client, submodels.window(fed, client.architecture), self.weight(client), rows)

    def round(self, fed, state, cohort, t):
        uploads = ((c.id, self.local(fed, c, state, t)) for c in fed.mine(cohort))
        return submodels.aggregate(fed, state, uploads, cohort)
