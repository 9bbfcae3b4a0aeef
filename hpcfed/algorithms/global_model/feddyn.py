"""FedDyn: a dynamic regulariser in each client's objective aligns local optima with the global one.

Acar et al. (Federated Learning Based on Dynamic Regularization), ICLR 2021, arXiv:2111.04263,
algorithm 1. The linear term changes with the client's past updates. With weighting = "samples"
clients count by their examples in the sum, the mean and K.

Objective: F_k(w) - <g_k, w> + alpha / 2 ||w - w_t||^2
Server: h <- h - alpha / K sum_k (w_k - w_t); w <- mean_k w_k - h / alpha
Round:
1. The server sends its model, w_t, to the cohort.
2. Each client minimises its loss with the linear and the proximal term.
3. It updates its g_k by -alpha (w_k - w_t) and keeps it.
4. It sends its model.
5. The server updates h and subtracts h / alpha from the mean of the models.

Deviations: local training is the job's, not to the optimum. Float buffers of batch normalisation
are averaged and have neither g_k nor h. The authors' code divides alpha by a client's share of the
data, and keeps g_k / alpha with the other sign.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import PositiveFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Model, Params, RoundBased, Upload, sgd
from hpcfed.algorithms.global_model.shares import share_of
from hpcfed.training.losses import inner_product, proximal


@dataclass(frozen=True)
class State:
    """State of the server: its model and its correction.

    x: the model.
    h: the correction, for parameters alone.
    """

    x: Params
    h: Params


class FedDyn(RoundBased):
    """FedAvg with dynamic regularisation.

    A client's g_k is in its memory; before its first round it is 0.
    """

    guide = Guide(
        data="different labels",
        sent="all weights",
        won="fewer rounds than FedAvg, FedProx and SCAFFOLD on images",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: 1, or its number of training examples."""
    alpha: PositiveFloat = 0.01
    """Weight of the proximal term, and step of the linear one."""

    def init(self, fed: Federation) -> State:
        x = fed.initial()
        return State(x, x.pick(fed.trainable) * 0)

    def model(self, state: State) -> Params:
        return state.x

    def objective(
        self, client: Client, anchor: Params, dual: Params, model: Model, x: Any, y: Tensor
    ) -> Tensor:
        """Return the regularised local objective; dual: g_k."""
        value = self.loss(client, anchor, model, x, y)
        return value + proximal(model, anchor, self.alpha) - inner_product(model, dual)

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, state.x)
        self.receive(client, download)
        dual = Params(client.memory.get("dual", state.h * 0))
        objective = partial(self.objective, client, download, dual)
        sgd(fed, client, t, objective, passes=self.step_passes)
        sent = client.params()
        delta = sent.pick(fed.trainable) - download
        client.memory["dual"] = dual - self.alpha * delta
        return Upload(Mean.of(sent, self.weight(client)), relative_to=download)

    def server(self, fed: Federation, state: State, mean: Params, cohort: list[int]) -> State:
        delta = mean.pick(fed.trainable) - state.x
        h = state.h - (self.alpha * share_of(self, fed, cohort)) * delta
        x = {name: v - h[name] / self.alpha if name in h else v for name, v in mean.items()}
        return State(Params(x), h)
