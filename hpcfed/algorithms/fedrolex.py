"""FedRolex: as HeteroFL, but the slices roll through the model, so that every weight is trained in turn.

Alam et al., NeurIPS 2022, arXiv:2212.01548, algorithm 1: in round t a group of K units gives the units
{(t + i) mod K : i = 0 .. ceil(width K) - 1}. The server's model may be wider than any client's. Scaler, static batch
normalisation and masked cross-entropy are HeteroFL's (arXiv:2010.01264), as in the authors' code. Deviations: the
kept units stay in the model's order, which makes width 1 FedAvg and changes nothing else; static statistics are
those of the whole model alone and are taken after every round; a round in which nobody reports does not roll.
"""

from functools import partial
from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import NonNegativeInt

from hpcfed.algorithms.base import RoundBased
from hpcfed.models.widths import rolled
from hpcfed.training import submodels
from hpcfed.training.local import sgd


class FedRolex(RoundBased):
    """Round 1 is HeteroFL's; roll_step = 0 is HeteroFL always, but for its personal, masked evaluation."""

    accepts: ClassVar[str] = "widths"

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean of a value: its number of training examples, or 1."""
    roll_step: NonNegativeInt = 1
    """Units by which the window moves from round to round."""
    scaler: bool = True
    """Multiply the outputs of hidden layers by 1 / width while training."""
    mask: submodels.Mask = "zero"
    """What the logits of classes become that a client has no examples of; none: they and their rows are as others."""
    batch_norm: Literal["static", "aggregate"] = "static"
    """The whole model's statistics for evaluation: taken anew by one more pass, or averaged like weights."""
    assignment: submodels.Assignment = "fix"
    """Clients keep their width, or draw one of models.widths for each round."""

    def traffic(self, fed, k):
        return submodels.announced(fed, k, self.mask, self.assignment)

    def architecture(self, fed, k, t):
        return submodels.level(fed, k, t, self.assignment)

    def init(self, fed):
        return submodels.start(fed, [submodels.base(fed)] if self.batch_norm == "static" else ())

    def whole(self, fed):
        return True

    def window(self, fed, client, state):
        return submodels.window(fed, client.architecture, rolled(state.t * self.roll_step))

    def offer(self, fed, client, state):
        return submodels.piece(client, state, self.window(fed, client, state))

    def loss(self, client, state, model, x, y):
        logits = model(x)
        return F.cross_entropy(submodels.masked(logits, submodels.held(client, logits.shape[1]), self.mask), y)

    def local(self, fed, client, state, t):
        given = self.offer(fed, client, state)
        self.receive(client, fed.down(client, given))
        with submodels.scaled(client, self.scaler):
            sgd(fed, client, t, partial(self.loss, client, given), views=self.views)
        rows = None if self.mask == "none" else submodels.held(client, fed.classes)
        return submodels.upload(client, self.window(fed, client, state), self.weight(client), rows)

    def round(self, fed, state, cohort, t):
        uploads = ((c.id, self.local(fed, c, state, t)) for c in fed.mine(cohort))
        return submodels.aggregate(fed, state, uploads, cohort)
