"""FedNova: updates are divided by the number of gradients in them before they are averaged.

Wang et al. (Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization),
NeurIPS 2020, arXiv:2007.07481. Without this division, clients that take more steps pull the optimum
towards their own. a_k counts how often each of a client's tau_k gradients enters its update.
||a_k||_1 is tau_k for plain SGD; momentum and the proximal term change it (`count_gradients`). It
is the sum of a_k: with momentum and a proximal term some of its entries can be negative.

Objective: F_k(w) + mu / 2 ||w - w_t||^2
Server: tau_eff = sum_k p_k ||a_k||_1; w <- w - tau_eff sum_k p_k (w - w_k) / ||a_k||_1
Round:
1. The server sends its model, w_t, to the cohort.
2. Each client trains; it may take any number of steps.
3. It counts how often each of its gradients enters its update: a_k.
4. It sends its update, divided by the sum of a_k, and this sum.
5. The server steps along the mean of the divided updates, times the mean of the sums.

Deviations: float buffers of batch normalisation are averaged like FedAvg's. Weight decay counts as
part of the gradient. With a proximal term the authors' code has sum_k p_k tau_k for tau_eff, and
with momentum beside it adds up both counters, which is not the sum of a_k; their server momentum is
left out.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Job, Mean, Model, Params, RoundBased, Upload
from hpcfed.algorithms.global_model.shares import without_trained
from hpcfed.training.losses import proximal
from hpcfed.training.optimisers import learning_rate

EXAMINED = 1000  # steps after which the number of gradients must be positive
SMALL = 1e-3  # numbers of gradients below this cannot divide an update
COUNT = "gradients"  # name of ||a_k||_1 beside the tensors of an update


def counts(momentum: float = 0.0, shrink: float = 0.0) -> Iterator[float]:
    """Yield ||a||_1 after 1, 2, ... steps of SGD: how often gradients enter the update, in total.

    momentum: rho.  shrink: learning rate times the weight mu of a proximal term.

    The gradient of the proximal term, mu (w - w_t), passes through the momentum buffer as any other
    does. Divided by the learning rate, the buffer's and the update's sums of coefficients are
    B <- rho B + 1 - shrink A and A <- A + B, from 0.
    """
    buffer, total = 0.0, 0.0
    while True:
        buffer = momentum * buffer + 1 - shrink * total
        total += buffer
        yield total


def count_gradients(steps: int, momentum: float = 0.0, shrink: float = 0.0) -> float:
    """Return ||a||_1 of a number of steps (`counts`); 0 of none.

    Wang et al., NeurIPS 2020.
    """
    return next(islice(counts(momentum, shrink), steps - 1, None)) if steps else 0.0


class FedNova(RoundBased):
    """FedAvg with normalised updates.

    If all clients take equally many steps this is FedAvg up to rounding.
    """

    guide = Guide(
        data="different sizes, so different numbers of steps",
        sent="all weights",
        won="unequal local steps: no bias towards those with many",
    )

    keeps_stragglers: ClassVar[bool] = True
    local_defaults: ClassVar[dict[str, Any]] = {"optimiser": "sgd", "lr": 0.1}

    mu: NonNegativeFloat = 0.0
    """Weight of a proximal term in the local objective; 0: none."""

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if job.local.optimiser != "sgd":
            reasons["job"] = (
                "needs SGD, because it counts how often gradients enter an update; set "
                "local.optimiser = 'sgd'"
            )
        elif job.local.keep_optimiser and job.local.momentum:
            reasons["job"] = (
                "needs updates of a round's own gradients, but momentum is kept from the round "
                "before; set local.keep_optimiser = false"
            )
        elif job.privacy.bounds:
            reasons["job"] = (
                "needs the number of gradients in each update as it is, but privacy.clip scales it "
                "with the update; set algorithm.name = 'fedavg'"
            )
        elif self.mu:
            shrink = job.local.lr * self.mu
            times = islice(counts(job.local.momentum, shrink), EXAMINED)
            step, least = min(enumerate(times, 1), key=lambda pair: pair[1])
            if least < SMALL:
                reasons["job"] = (
                    f"needs updates that gradients enter more than 0 times, but with algorithm.mu "
                    f"= {self.mu}, local.lr = {job.local.lr} and local.momentum = "
                    f"{job.local.momentum} it is {least:.3g} times after {step} steps; set a "
                    f"smaller mu"
                )
        return reasons

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        value = super().loss(client, state, model, x, y)
        return value + proximal(model, anchor=state, mu=self.mu) if self.mu else value

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        steps = self.train(fed, client, download, t)
        shrink = learning_rate(fed, t) * self.mu
        total = count_gradients(steps, fed.job.local.momentum, shrink)
        model = client.params()
        change = (download - model) * (1 / total)
        sent = Params({**model, **change.pick(fed.trainable)})
        count = torch.tensor(total, device=fed.device)
        return Upload(Mean.of(Params({**sent, COUNT: count}), self.weight(client)))

    def averaged(self, fed: Federation, state: Params) -> Params:
        count = next(iter(state.values())).new_zeros(())
        return Params({**without_trained(fed, state), COUNT: count})

    def server(self, fed: Federation, state: Params, mean: Params, cohort: list[int]) -> Params:
        total = float(mean.pop(COUNT))  # tau_eff
        return Params({n: state[n] - total * v if fed.trainable(n) else v for n, v in mean.items()})
