"""q-FedAvg: clients with larger losses count for more, so that accuracies differ less.

Li et al. (Fair Resource Allocation in Federated Learning), ICLR 2020, arXiv:1905.10497, algorithm
2, for the objective q-FFL, sum_k p_k F_k(w)^(q+1) / (q+1). F_k(w) is the mean loss of the received
model on all training examples of client k, D_k = w - w_k the change by its local training, and L =
1 / eta.

Objective: F_k(w)
Server: w <- w - sum_k F_k^q D_k / sum_k (F_k^q + q F_k^(q-1) L ||D_k||^2)
Round:
1. The server sends its model to the cohort.
2. Each client computes its loss F_k(w), and trains the model.
3. It sends F_k^q D_k and the number F_k^q + q F_k^(q-1) L ||D_k||^2.
4. The server divides the mean of the former by the mean of the latter.
5. It steps along the quotient.

Deviations: the paper's steps and numbers are L times as large, which cancels. As in the authors'
code, 1e-10 is added to each loss. The paper draws clients by their numbers of examples
(selection.by = "size"). Float buffers of batch normalisation are averaged, and are no part of the
norms.
"""

from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat

from hpcfed import Client, Federation, Guide, Job, Mean, Params, RoundBased, Upload
from hpcfed.config.conditions import field
from hpcfed.training.infer import mean_loss
from hpcfed.training.local import learning_rate

LEAST = 1e-10  # added to a loss, so that it has powers below 0


class QFedAvg(RoundBased):
    """With q = 0 it is FedAvg with the same weighting, up to rounding."""

    guide = Guide(
        data="different, where the worst clients matter",
        sent="all weights, and a number",
        won="accuracies of clients differ less than with FedAvg and AFL, at a similar mean",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight p_k of a client in the objective: 1, or its number of training examples."""
    q: NonNegativeFloat = 1.0
    """Power of the losses: the larger, the more count clients with large ones."""
    lipschitz: PositiveFloat | None = field(None, used_if="q")
    """L, an estimate of the largest curvature of the objective; none: 1 / local.lr of the round."""

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        plain = job.local.optimiser == "sgd" and not job.local.momentum
        if self.q and self.lipschitz is None and not plain:
            reasons["job"] = (
                "needs plain SGD, whose learning rate is 1 / L, but the job has momentum or Adam; "
                "set local.optimiser = 'sgd' and local.momentum = 0, or algorithm.lipschitz"
            )
        return reasons

    @property
    def local_defaults(self) -> dict[str, Any]:
        return {} if self.lipschitz else {"optimiser": "sgd", "lr": 0.1}

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        loss = mean_loss(fed, client) if self.q else 1.0
        self.train(fed, client, download, t)
        change = download - client.params()
        square = sum(v.double().square().sum().item() for v in change.pick(fed.trainable).values())
        scale, h = step_sizes(loss, square, self.q, self.lipschitz or 1 / learning_rate(fed, t))
        step = Params({**change, **scale * change.pick(fed.trainable)})
        weight, number = self.weight(client), torch.tensor([h], device=fed.device)
        return Upload(step=Mean.of(step, weight), h=Mean.of(Params(h=number), weight))

    def averaged(self, fed: Federation, state: Params) -> dict[str, Params]:
        zero = next(iter(state.values())).new_zeros(1)
        return {"step": 0 * state, "h": Params(h=zero)}

    def server(self, fed: Federation, state: Params, mean: Any, cohort: list[int]) -> Params:
        h = float(mean["h"]["h"])
        steps = mean["step"].pick(fed.trainable) * (1 / h if h > 0 else 0.0)
        return state - Params({**mean["step"], **steps})


def step_sizes(loss: float, square: float, q: float, lipschitz: float) -> tuple[float, float]:
    """Return F^q, the factor of a client's change, and its part h of the denominator.

    square: the squared norm of the change.
    """
    loss += LEAST
    scale = loss**q
    return scale, scale + q * loss ** (q - 1) * lipschitz * square
