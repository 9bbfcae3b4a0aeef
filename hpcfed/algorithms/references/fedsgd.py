"""FedSGD: each client of the cohort sends one gradient over all its data; the server takes a step.

McMahan et al., AISTATS 2017, arXiv:1602.05629, section 2. Clients send the step -lr * gradient
(and, where a model has them, the change of its batch statistics), which has the gradient's size.

Objective: sum_k p_k F_k(w)
Server: w <- w - eta sum_k p_k grad F_k(w)
Round:
1. The server sends its model to the cohort.
2. Each client computes one gradient over all its examples.
3. It sends the step down this gradient.
4. The server adds the weighted mean of the steps to its model.

Deviations: with batch normalisation the gradient is that of batches of local.batch examples, each
with its own statistics.
"""

from functools import partial
from typing import Any, ClassVar

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Upload
from hpcfed.algorithms.base import PLAIN_GRADIENT
from hpcfed.config.conditions import Unused
from hpcfed.training.local import gradient, learning_rate


class FedSGD(RoundBased):
    """FedSGD equals FedAvg with one full batch and plain SGD, up to rounding."""

    guide = Guide(
        data="alike",
        sent="weights down, one gradient up",
        won="the reference of FedAvg's paper, in rounds far behind it",
    )

    local_defaults: ClassVar[dict[str, Any]] = {"optimiser": "sgd", "lr": 0.1}
    unused: ClassVar[Unused] = PLAIN_GRADIENT

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        change = step_down(self, fed, client, download, t)
        return Upload(Mean.of(change, self.weight(client)))

    def averaged(self, fed: Federation, state: Params) -> Params:
        return state * 0

    def server(self, fed: Federation, state: Params, mean: Params, cohort: list[int]) -> Params:
        return state + mean


def step_down(
    method: RoundBased, fed: Federation, client: Client, received: Params, t: int
) -> Params:
    """Return the step of the learning rate down the gradient of the method's loss.

    The client's model has the weights that it received. Statistics of batch normalisation change as
    in the pass that computes the gradient.
    """
    gradient(fed, client, t, partial(method.loss, client, received))
    step = client.gradient() * -learning_rate(fed, t)
    statistics = client.params(lambda name: name not in step)
    return Params({**step, **(statistics - received)})
