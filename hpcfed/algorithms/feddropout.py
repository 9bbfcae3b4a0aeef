"""Federated Dropout: each client trains a random part of the model, drawn anew in every round.

Caldas et al., 2018, arXiv:1812.07210, section 3: the same number of units of each layer is dropped at random, so that
the sub-model is a smaller dense model; the server puts it back in its place. Deviations: widths may differ by
client; each value is averaged over the clients that have it; what travels is not compressed; the representation and
the units that a residual sum ties are dropped too. The scaler is that of dropout and of HeteroFL.
"""

from functools import partial
from typing import ClassVar, Literal

from hpcfed import rng
from hpcfed.algorithms.base import RoundBased
from hpcfed.models.widths import drawn
from hpcfed.training import submodels
from hpcfed.training.local import sgd


class FedDropout(RoundBased):
    """With all widths 1 and batch_norm = "aggregate" FedAvg, bit for bit. Dropout layers of a model stay."""

    accepts: ClassVar[str] = "widths"

    shared_windows: bool = False
    """All clients of a round drop the same units (of clients with different widths the narrower one's are a part)."""
    scaler: bool = True
    """Multiply the outputs of hidden layers by 1 / width while training."""
    batch_norm: Literal["static", "aggregate"] = "static"
    """The whole model's statistics for evaluation: taken anew by one more pass, or averaged like weights."""

    def init(self, fed):
        return submodels.start(fed, [submodels.base(fed)] if self.batch_norm == "static" else ())

    def whole(self, fed):
        return True

    def window(self, fed, client, state):
        whose = () if self.shared_windows else (client.id,)
        return submodels.window(fed, client.architecture, drawn(rng.stream(fed.seed, "window", state.t, *whose)))

    def offer(self, fed, client, state):
        return submodels.piece(client, state, self.window(fed, client, state))

    def local(self, fed, client, state, t):
        given = self.offer(fed, client, state)
        self.receive(client, fed.down(client, given))
        with submodels.scaled(client, self.scaler):
            sgd(fed, client, t, partial(self.loss, client, given), views=self.views)
        return submodels.upload(client, self.window(fed, client, state), self.weight(client))

    def round(self, fed, state, cohort, t):
        uploads = ((c.id, self.local(fed, c, state, t)) for c in fed.mine(cohort))
        return submodels.aggregate(fed, state, uploads, cohort)
