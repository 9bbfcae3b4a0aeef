"""FedSplit: Peaceman-Rachford splitting; each client takes a proximal step from a reflected point.

Pathak, Wainwright (FedSplit: an algorithmic framework for fast federated optimization), NeurIPS
2020, arXiv:2005.05238, algorithm 1. A client keeps a variable z_k from round to round. The paper's
s is 1 / sqrt(l L) for F_k that are l-strongly convex and L-smooth. With weighting = "samples" the
method converges to the optimum of the sum weighted by examples. There is no code of the authors.
The iteration was compared with wenh06/fl-sim; its pseudo-code, not its program, sets z_k to x in
each round and so loses the method's memory.

Objective: F_k(w) + ||w - c_k||^2 / (2 s)
Server: x <- sum_(k=1)^K z_k / K
Round:
1. The server sends x to the cohort.
2. Each client reflects: c_k is 2 x - z_k.
3. It trains from x towards the proximal point at c_k, the minimum of the objective, up to x_k.
4. It adds 2 (x_k - x) to its z_k and sends the change.
5. The server takes the mean of the z_k of all clients.

Deviations: the proximal step is the job's local training from x. A client sends the change of its
z_k, so that the mean is over all clients even if not all take part; in the paper all do. Float
buffers of batch normalisation are averaged plainly.
"""

from functools import partial
from typing import Any, Literal

from pydantic import PositiveFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Model, Params, RoundBased, Upload, sgd
from hpcfed.algorithms.global_model.shares import share_of, without_trained
from hpcfed.training.losses import proximal


class FedSplit(RoundBased):
    """Operator splitting; z_k of a client is in its memory.

    Before the client's first round z_k is the server's first model.
    """

    guide = Guide(
        data="any; convex objectives",
        sent="all weights",
        won="reaches the optimum that FedAvg misses",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: 1, or its number of training examples."""
    s: PositiveFloat = 1.0
    """Step of the proximal operator; 1 / s weighs the distance to the reflected point."""

    def objective(self, client: Client, centre: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        """Return the objective of the proximal step on one batch."""
        return self.loss(client, centre, model, x, y) + proximal(model, centre, 1 / self.s)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        common = download.pick(fed.trainable)
        started = "z" in client.memory
        z = Params(client.memory["z"]) if started else fed.initial(fed.trainable)
        sgd(fed, client, t, partial(self.objective, client, 2 * common - z))
        change = 2 * (client.params(fed.trainable) - common)
        client.memory["z"] = z + change
        buffers = client.params(lambda name: not fed.trainable(name))
        sent = Mean.of(Params({**change, **buffers}), self.weight(client))
        return Upload(sent, relative_to=without_trained(fed, download))

    def averaged(self, fed: Federation, state: Params) -> Params:
        return without_trained(fed, state)

    def server(self, fed: Federation, state: Params, mean: Params, cohort: list[int]) -> Params:
        share = share_of(self, fed, cohort)
        return Params({**mean, **(state.pick(fed.trainable) + share * mean.pick(fed.trainable))})
