"""FedAvgM: FedAvg whose server has momentum.

Hsu et al. (Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification), 2019, arXiv:1909.06335, section 4.3.

Objective: F_k(w)
Server: v <- beta v + sum_k p_k (w - w_k); w <- w - eta v
Round:
1. The server sends its model to the cohort.
2. Each client trains it and sends it.
3. The server adds the weighted mean change of the models to its momentum v.
4. It steps along v, or with nesterov along beta v plus the mean change.

Deviations: float buffers of batch normalisation are averaged and have no momentum, because a
variance could become negative.
"""

from dataclasses import dataclass

from pydantic import PositiveFloat

from hpcfed import Federation, Guide, Params, RoundBased, field
from hpcfed.algorithms.global_model.moments import Decay, step_with_momentum


@dataclass(frozen=True)
class State:
    """State of the server: its model and its momentum.

    x: the model.
    v: the momentum, of parameters alone.
    """

    x: Params
    v: Params


class FedAvgM(RoundBased):
    """FedAvg with a momentum of the server; beta = 0 and server_lr = 1 are FedAvg, bit for bit."""

    guide = Guide(
        data="different labels",
        sent="all weights",
        won="CIFAR-10 with Dirichlet labels: far above FedAvg, most where they differ most",
    )

    beta: Decay = 0.9
    """Momentum of the server."""
    server_lr: PositiveFloat = 1.0
    """Step size of the server."""
    nesterov: bool = field(False, used_if="beta")
    """Nesterov's momentum."""

    def init(self, fed: Federation) -> State:
        x = fed.initial()
        return State(x, x.pick(fed.trainable) * 0)

    def model(self, state: State) -> Params:
        return state.x

    def server(self, fed: Federation, state: State, mean: Params, cohort: list[int]) -> State:
        return State(
            *step_with_momentum(state.x, state.v, mean, self.beta, self.server_lr, self.nesterov)
        )
