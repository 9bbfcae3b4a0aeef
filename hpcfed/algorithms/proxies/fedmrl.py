"""FedMRL: each client fuses the representations of its own model and of a small common model.

The first values of the fused representation are a coarse one, which the common model's head reads;
the own head reads all of it.

Yi et al., NeurIPS 2024, arXiv:2406.00488, algorithm 1. The common model (models.proxy) has the body
g and a head on d_1 values; the own model has the body f and a head on d_2 >= d_1 values. A is the
client's projector, a linear layer with d_2 outputs.

Objective: CE_own + m CE_common; CE_own = CE(h_own(r), y); CE_common = CE(h_common(r_(1..d_1)), y);
    r = A(g(x), f(x))
Server: w <- sum_k p_k w_k
Round:
1. The server sends the common model w to the cohort.
2. Each client trains its own model, the common one and its projector together.
3. It sends the common model w_k; its own model and projector stay.
4. The server takes the weighted mean of the common models.

Deviations: both heads' losses have the weight 1 in the paper; m is that of the common one. The
authors' code sends the state of one module that all clients share, so that its mean is the last
client's model, and it keeps the momentum of that module from client to client; neither is followed.
It clips gradients at norm 50; here they are not clipped. Narrower common models (algorithm.coarse)
have a linear layer behind their body, the paper's a narrower last layer.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from hpcfed import Client, ConfigError, Federation, Guide, Model, Params
from hpcfed.algorithms.proxies.pairs import AveragedProxy
from hpcfed.models.model import Head, Pair
from hpcfed.models.variants import name_variant


class FedMRL(AveragedProxy):
    """With inference = "proxy" a client predicts by the common head, of the coarse part."""

    guide: ClassVar[Guide] = Guide(
        data="different labels",
        sent="the small common model",
        won="above FML, FedKD and FedProto with five CNNs",
    )

    reads_head: ClassVar[bool] = True
    variants: ClassVar[tuple[str, ...]] = (name_variant("fuse"),)

    coarse: PositiveInt | None = None
    """Values of the common model's representation, d_1: a linear layer of this width is added
    behind its body; none: models.d.
    """
    m: NonNegativeFloat = 1.0
    """Weight of the loss of the common head, which reads the coarse representation."""

    @property
    def proxy_variant(self) -> str:
        return name_variant("project", self.coarse) if self.coarse else ""

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Tensor) -> Tensor:
        r = model.body(x)
        value = client.task.loss(model.head(r), y)
        return value + self.m * client.task.loss(model.classify_coarse(r), y) if self.m else value

    def predictor(self, fed: Federation, client: Client, state: Params) -> Callable[[Any], Tensor]:
        model: Any = client.model
        if self.inference == "proxy":
            return lambda x: model.classify_coarse(model.body(x))
        return client.model


class Fused(nn.Module):
    """A client's own model and the common one, whose representations a projector fuses.

    Parameters are named "own. ...", "proxy. ..." and "projector. ...". Its representation is the
    fused one, [n, d_2], which the own head classifies.
    """

    def __init__(self, own: Model, proxy: Model):
        super().__init__()
        coarse, fine = proxy.head.in_features, own.head.in_features
        if coarse > fine:
            raise ConfigError(
                f"fedmrl: the representation of models.proxy has {coarse} values, more than that "
                f"of a client's own model, {fine}\n  take a wider own model, or set "
                f"algorithm.coarse"
            )
        self.own, self.proxy, self.coarse = own, proxy, coarse
        self.projector = nn.Linear(coarse + fine, fine)

    @property
    def body(self) -> Callable[[Any], Tensor]:
        return self.represent

    @property
    def head(self) -> Head:
        return self.own.head

    def represent(self, x: Any) -> Tensor:
        """Return the fused representation r, [n, d_2]."""
        return self.projector(torch.cat([self.proxy.body(x), self.own.body(x)], 1))

    def classify_coarse(self, r: Tensor) -> Tensor:
        """Return the common head's logits of the coarse part of a representation, [n, C]."""
        return self.proxy.head(r[:, : self.coarse])

    def forward(self, x: Any) -> Tensor:
        return self.head(self.represent(x))


def fuse(pair: Pair) -> Fused:
    """Return the two models of a pair with a new projector."""
    return Fused(pair.own, pair.proxy)
