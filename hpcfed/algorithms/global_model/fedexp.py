"""FedExP: the server extrapolates, the further the more the clients' updates differ.

Jhunjhunwala et al. (FedExP: Speeding up Federated Averaging via Extrapolation), ICLR 2023,
arXiv:2301.09604, algorithm 1. D_k = w - w_k, D = sum_k p_k D_k.

Objective: F_k(w)
Server: eta <- max(1, sum_k p_k ||D_k||^2 / (2 (||D||^2 + eps))); w <- w - eta D
Round:
1. The server sends its model to the cohort.
2. Each client trains it, and sends it with the squared norm of its update D_k.
3. The server takes the means of both, and from them the step size eta.
4. It steps along the mean update D.
5. After the last round it takes the mean of its last two models.

Deviations: p_k are weights by examples, as in the authors' code; the paper's are equal. That code
multiplies eps by the number of clients in the cohort and lets it shrink with the learning rate.
Float buffers of batch normalisation are averaged, not extrapolated, and are no part of the norms.
The model of each round is the last one, not the mean of the last two.
"""

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Upload


@dataclass(frozen=True)
class State:
    """State of the server: its model, and that of the round before."""

    x: Params
    previous: Params


class FedExP(RoundBased):
    """FedAvg with extrapolation; with equal updates it is FedAvg, bit for bit."""

    guide = Guide(
        data="different labels",
        sent="all weights, and a number",
        won="fewer rounds than FedAvg, SCAFFOLD, FedAdagrad on images",
    )

    eps: NonNegativeFloat = 1e-3
    """Added to the squared norm of the mean update: the larger, the less is extrapolated."""

    def init(self, fed: Federation) -> State:
        x = fed.initial()
        return State(x, x)

    def model(self, state: State) -> Params:
        return state.x

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, state.x)
        self.receive(client, download)
        self.train(fed, client, download, t)
        sent, weight = client.params(), self.weight(client)
        square = squared_norm(sent.pick(fed.trainable) - download)
        return Upload(
            x=Mean.of(sent, weight),
            square=Mean.of(Params(square=square), weight),
            relative_to={"x": download},
        )

    def averaged(self, fed: Federation, state: State) -> dict[str, Params]:
        zero = next(iter(state.x.values())).new_zeros(1)
        return {"x": state.x, "square": Params(square=zero)}

    def server(self, fed: Federation, state: State, mean: Any, cohort: list[int]) -> State:
        update = mean["x"].pick(fed.trainable) - state.x
        eta = step_size(float(mean["square"]["square"]), float(squared_norm(update)), self.eps)
        if eta == 1:
            return State(mean["x"], state.x)
        x = state.x.pick(fed.trainable) + eta * update
        return State(Params({**mean["x"], **x}), state.x)

    def finish(self, fed: Federation, state: State, t: int) -> State:
        return State(0.5 * (state.x + state.previous), state.previous)


def squared_norm(update: Params) -> Tensor:
    """Return the squared norm of all tensors together, [1], float32, summed in float64."""
    squares = [value.double().square().sum() for value in update.values()]
    return torch.stack(squares).sum().reshape(1).float()


def step_size(mean_of_squares: float, square_of_mean: float, eps: float) -> float:
    """Return eta from the mean of ||D_k||^2 and from ||D||^2; 1 if nothing has changed."""
    below = 2 * (square_of_mean + eps)
    return max(1.0, mean_of_squares / below) if below else 1.0
