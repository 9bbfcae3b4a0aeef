"""FedPD: clients minimise an augmented Lagrangian of the consensus problem with dual variables.

Zhang et al. (FedPD: A Federated Learning Framework with Adaptivity to Non-IID Data), IEEE Trans.
Signal Process. 69, 2021, arXiv:2005.11418, algorithm 1. x0_k is a client's anchor, l_k its dual
variable. With p = 0 and start = "anchor" this is FedDyn with alpha = 1 / eta. The implementation is
based on the authors' Python code (564612540/FedPD), which has the paper's form of u_k. Their MATLAB
code sends x_k + eta l_k with the old l_k. The oracle with variance reduction is not implemented.
With weighting = "samples" the method converges to the optimum of the sum weighted by examples. With
p > 0 and exact local solutions it was observed to circle the optimum of quadratics without
settling, because in a round without communication a client steps towards its own optimum.

Objective: F_k(x) + <l_k, x - x0_k> + ||x - x0_k||^2 / (2 eta)
Server: x0 <- sum_(k=1)^K u_k / K
Round:
1. Each client minimises its augmented Lagrangian, from its last x_k; its anchor x0_k is the
   server's x0, which it receives, or its own.
2. It sets l_k to l_k + (x_k - x0_k) / eta and u_k to x_k + eta l_k.
3. One random draw decides for all clients whether this round communicates: with probability 1 - p.
4. If it does, they send u_k, and the mean of all clients' last u_k is the new anchor of all.
5. If not, nothing is sent, and each client's u_k is its own anchor.

Deviations: local training is the job's, not to a given accuracy. A client sends the change of its
u_k since it last sent, so that the mean is over all clients even if not all take part; in the paper
all do. Float buffers of batch normalisation are averaged plainly.
"""

from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from hpcfed import (
    Client,
    Federation,
    Guide,
    Mean,
    Model,
    Params,
    RoundBased,
    Share,
    Upload,
    rng,
    sgd,
)
from hpcfed.algorithms.global_model.shares import share_of, without_trained
from hpcfed.training.losses import inner_product, proximal


class FedPD(RoundBased):
    """Primal-dual method; a client's own model is its x_k.

    Its memory holds l_k, the u_k that it last sent, and x0_k if it is its own.
    """

    guide = Guide(
        data="any; non-convex objectives",
        sent="all weights, in some rounds",
        won="fewer exchanges by its theory; small experiments",
    )

    keeps_weights: ClassVar[bool | None] = True

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: 1, or its number of training examples."""
    eta: PositiveFloat = 1.0
    """Step of the dual variable; 1 / eta weighs the distance to the anchor."""
    p: Share = 0.0
    """Probability that a round has no communication."""
    start: Literal["own", "anchor"] = "own"
    """Where local training starts: at the client's last model, or at its anchor."""

    def communicates(self, fed: Federation, t: int) -> bool:
        """Return whether clients send at the end of round t; the draw is the same for all."""
        return rng.stream(fed.seed, "communication", t).random() >= self.p

    def objective(
        self, client: Client, anchor: Params, dual: Params, model: Model, x: Any, y: Tensor
    ) -> Tensor:
        """Return the augmented Lagrangian on one batch."""
        value = self.loss(client, anchor, model, x, y)
        linear = inner_product(model, dual) - products(anchor, dual)
        return value + proximal(model, anchor, 1 / self.eta) + linear

    def anchor(self, fed: Federation, client: Client, state: Params, t: int) -> Params:
        """Return x0_k: the client's own, or the server's, which is downloaded.

        The client's own counts if no client has sent anything since it was made.
        """
        since = client.memory.get("made", -1)
        if since >= 0 and not any(self.communicates(fed, s) for s in range(since, t)):
            return Params(client.memory["anchor"])
        return fed.down(client, state)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload | None:
        anchor = self.anchor(fed, client, state, t)
        if self.start == "anchor" or "dual" not in client.memory:
            client.load(anchor)
        if "dual" in client.memory:
            dual, sent = (Params(client.memory[name]) for name in ("dual", "sent"))
        else:
            sent = fed.initial(fed.trainable)
            dual = sent * 0
        sgd(fed, client, t, partial(self.objective, client, anchor, dual))
        delta = client.params() - anchor
        dual = dual + (1 / self.eta) * delta.pick(fed.trainable)
        target = client.params(fed.trainable) + self.eta * dual
        sends = self.communicates(fed, t)
        buffers = client.params(lambda name: name not in dual)
        memory = client.memory
        memory |= {"dual": dual, "sent": target if sends else sent}
        if not sends:
            memory |= {"made": t, "anchor": Params({**target, **buffers})}
            return None
        for name in ("made", "anchor"):
            memory.pop(name, None)
        change = Params({**(target - sent), **buffers})
        return Upload(
            Mean.of(change, self.weight(client)), relative_to=without_trained(fed, anchor)
        )

    def averaged(self, fed: Federation, state: Params) -> Params:
        return without_trained(fed, state)

    def server(self, fed: Federation, state: Params, mean: Params, cohort: list[int]) -> Params:
        if not self.communicates(fed, fed.t):
            return state
        share = share_of(self, fed, cohort)
        return Params({**mean, **(state.pick(fed.trainable) + share * mean.pick(fed.trainable))})


def products(a: Params, b: Params) -> Tensor:
    """Return <a, b> over the tensors that b names."""
    return torch.stack([torch.vdot(a[n].flatten(), v.flatten()) for n, v in b.items()]).sum()
