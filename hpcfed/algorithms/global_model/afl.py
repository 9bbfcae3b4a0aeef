"""AFL: agnostic federated learning, which minimises the loss of the worst mixture of clients.

Mohri et al. (Agnostic Federated Learning), ICML 2019, arXiv:1902.00146, section 4 (stochastic AFL):
min_w max_lam sum_k lam_k F_k(w), over weights lam >= 0 that sum to 1. F is the vector of all
F_k(w), and gamma the step size of the weights, lambda_lr.

Objective: F_k(w)
Server: w <- w - eta sum_k lam_k grad F_k(w); lam <- argmin_p ||p - lam - gamma F||, p >= 0, sum_k
    p_k = 1
Round:
1. The server sends its model to the cohort, which is best all clients.
2. Each client computes the mean loss F_k(w) and the gradient, on all of its examples.
3. It sends the step down the gradient, and the number F_k(w).
4. The server adds the steps up with the weights lam, and then steps up in lam.
5. After the last round it takes the mean of its models of all rounds.

Deviations: gradients and losses are those of all examples, not of one batch. The model of a round
is its last one; the mean of all comes after the last round. In the paper all clients take part in
each round (participation = 1); here the loss of a client that is absent raises no lam (the
projection onto the simplex may lower it), and the lam of the others are divided by their sum. With
batch normalisation the gradient is that of batches of local.batch examples, and float buffers are
averaged with the same weights. The run of AFL that the README of fair_flearn names replaces all lam
by 1.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Unused, Upload, unless
from hpcfed.algorithms.base import PLAIN_GRADIENT
from hpcfed.algorithms.global_model.iterates import add_iterate
from hpcfed.algorithms.references.fedsgd import step_down
from hpcfed.core.simplex import nearest_on_simplex
from hpcfed.training.infer import mean_loss


@dataclass(frozen=True)
class State:
    """State of the server: its model, the clients' weights, and the mean of its models.

    x: the model.
    lam: weights of all clients, [K], float64, sum 1.
    mean: mean of the models after each round.
    n: number of these, a scalar.
    """

    x: Params
    lam: Tensor
    mean: Params
    n: Tensor


class AFL(RoundBased):
    """With lambda_lr = 0 its models are those of FedSGD with equal weights, up to rounding."""

    guide = Guide(
        data="few groups that differ, where the worst one matters",
        sent="weights down, one gradient and a number up",
        won="accuracy of the worst group above that of uniform weights",
    )

    local_defaults: ClassVar[dict[str, Any]] = {"optimiser": "sgd", "lr": 0.1}
    unused: ClassVar[Unused] = {
        "weighting": "clients have the weights lambda",
        **{name: unless({"updates": "training"}, why) for name, why in PLAIN_GRADIENT.items()},
    }

    lambda_lr: NonNegativeFloat = 0.1
    """Step size of the clients' weights."""
    updates: Literal["gradient", "training"] = "gradient"
    """Clients send the step down one gradient, or the change by their local training."""

    def init(self, fed: Federation) -> State:
        x = fed.initial()
        lam = torch.full((fed.K,), 1 / fed.K, dtype=torch.float64, device=fed.device)
        return State(x, lam, x, torch.zeros((), dtype=torch.int64, device=fed.device))

    def model(self, state: State) -> Params:
        return state.x

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, state.x)
        self.receive(client, download)
        loss = torch.tensor([mean_loss(fed, client)], device=fed.device)
        if self.updates == "training":
            self.train(fed, client, download, t)
            return Upload(step=client.params() - download, loss=loss)
        return Upload(step=step_down(self, fed, client, download, t), loss=loss)

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Any]]) -> Any:
        """Return the mean step by the weights lambda, and the losses by client."""
        lam = state.lam.tolist()
        steps = ((k, Mean.of(Params(sent["step"]), lam[k])) for k, sent in uploads)
        losses = fed.gather({k: sent["loss"] for k, sent in uploads})
        return fed.mean(steps, keep=0 * state.x), losses

    def server(self, fed: Federation, state: State, mean: Any, cohort: list[int]) -> State:
        step, losses = mean
        x, lam = state.x + step, state.lam.tolist()
        for k, loss in losses.items():
            lam[k] += self.lambda_lr * float(loss)
        (new,) = nearest_on_simplex(torch.tensor(lam, dtype=torch.float64)[None]).to(fed.device)
        return State(x, new, add_iterate(state.mean, x, int(state.n)), state.n + 1)

    def finish(self, fed: Federation, state: State, t: int) -> State:
        return State(state.mean, state.lam, state.mean, state.n)
