"""MIFA: the server steps along the mean of all clients' latest updates, those of absent ones too.

Gu et al. (Fast Federated Learning in the Presence of Arbitrary Device Unavailability), NeurIPS
2021, arXiv:2106.04159, algorithm 1. G_k = (w - w_k) / eta is of the last round in which client k
took part. Each client remembers its own, and the server only their mean g.

Objective: F_k(w)
Server: g <- g + |S| / K mean_k (G_k^new - G_k); w <- w - eta g
Round:
1. The server sends its model to the cohort.
2. Each client trains it, and divides its update by the learning rate eta: its new G_k.
3. It sends the difference from its last G_k, and remembers the new one.
4. The server adds the mean difference, times the cohort's share of all clients, to g.
5. It steps along g, in which each absent client has its last G_k.

Deviations: before a client's first round its G_k is 0, as in the authors' code without waiting. The
paper's first round has all clients. Float buffers of batch normalisation are averaged over the
cohort.
"""

from dataclasses import dataclass
from typing import Literal

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Upload
from hpcfed.algorithms.global_model.shares import share_of
from hpcfed.training.local import learning_rate


@dataclass(frozen=True)
class State:
    """State of the server: its model and the mean of all clients' latest updates.

    x: the model.
    g: the mean of G_k over all clients, for parameters alone.
    """

    x: Params
    g: Params


class MIFA(RoundBased):
    """If all clients take part in each round, it is FedAvg with equal weights, up to rounding.

    A client's G_k is in its memory.
    """

    guide = Guide(
        data="different labels, at clients of which some are often absent",
        sent="all weights",
        won="clients with rare classes that are rarely present: above FedAvg, near its best",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: 1, or its number of training examples."""

    def init(self, fed: Federation) -> State:
        x = fed.initial()
        return State(x, x.pick(fed.trainable) * 0)

    def model(self, state: State) -> Params:
        return state.x

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, state.x)
        self.receive(client, download)
        self.train(fed, client, download, t)
        change = client.params() - download
        new = (-1 / learning_rate(fed, t)) * change.pick(fed.trainable)
        last = Params(client.memory.get("update", new * 0))
        client.memory["update"] = new
        sent = Params({**change, **(new - last)})
        return Upload(Mean.of(sent, self.weight(client)), relative_to=sent * 0)

    def averaged(self, fed: Federation, state: State) -> Params:
        return state.x * 0

    def server(self, fed: Federation, state: State, mean: Params, cohort: list[int]) -> State:
        g = state.g + share_of(self, fed, cohort) * mean
        step = Params({**mean, **(-learning_rate(fed, fed.t) * g)})
        return State(state.x + step, g)
