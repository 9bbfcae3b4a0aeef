"""FedOpt: the server uses the clients' mean change as a gradient for Adam, Yogi or Adagrad.

Reddi et al., ICLR 2021, arXiv:2003.00295, algorithm 2 (FedAdam, FedYogi, FedAdagrad). Their
experiments, which are the preset `authors`, weigh clients by examples, begin with v = 0 and correct
the bias of the moments, as Keras does. Algorithm 2 weighs clients equally, begins with v = tau^2
and corrects nothing. Their Adagrad has b1 = 0.

Objective: F_k(w)
Server: D = mean_k (w_k - w); m <- b_1 m + (1 - b_1) D; v <- b_2 v + (1 - b_2) D^2; w <- w + eta m /
    (sqrt(v) + tau)
Round:
1. The server sends its model to the cohort.
2. Each client trains it and sends it.
3. The server takes the mean change D of the models.
4. It updates the first moment m, and the second moment v: by Adam's rule above, Yogi's,
   v - (1 - b2) D^2 sign(v - D^2), or Adagrad's, v + D^2.
5. It steps along m, divided by the root of v.

Deviations: float buffers of batch normalisation are averaged, not adapted.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from hpcfed import Federation, Guide, Params, RoundBased
from hpcfed.algorithms.global_model.moments import Decay, Rule, direction, second_moment
from hpcfed.config.conditions import field, other_than


@dataclass(frozen=True)
class State:
    """State of the server: its model and the moments of its optimiser.

    x: the model.
    m, v: moments, of parameters alone.
    steps: number of the server's steps, a scalar.
    """

    x: Params
    m: Params
    v: Params
    steps: Tensor


class FedOpt(RoundBased):
    """FedAvg with an adaptive server.

    tau = eta, both huge, with b1 = 0 and start = "zero" is FedAvg.
    """

    guide = Guide(
        data="alike to moderately different",
        sent="all weights",
        won="sparse gradients and text, above FedAvg",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: its number of training examples, or 1."""
    optimiser: Rule = "adam"
    """How the second moment follows the squared changes."""
    eta: PositiveFloat = 0.01
    """Step size of the server."""
    b1: Decay = 0.9
    """Decay of the first moment; 0: only the change of this round."""
    b2: Decay = field(0.99, used_if={"optimiser": other_than("adagrad")})
    """Adam and Yogi: decay of the second moment."""
    tau: NonNegativeFloat = 1e-3
    """Added to the root of the second moment: the smaller, the more adaptive."""
    start: Literal["tau", "zero"] = "tau"
    """Second moment before the first step: tau squared, or 0."""
    bias_correction: bool = field(False, used_if={"optimiser": other_than("adagrad")})
    """Adam and Yogi: correct the bias of the moments in the first steps."""

    def init(self, fed: Federation) -> State:
        x = fed.initial()
        zero = x.pick(fed.trainable) * 0
        start = self.tau**2 if self.start == "tau" else 0.0
        v = zero.map(lambda value: value + start)
        return State(x, zero, v, torch.zeros((), dtype=torch.int64, device=fed.device))

    def model(self, state: State) -> Params:
        return state.x

    def server(self, fed: Federation, state: State, mean: Params, cohort: list[int]) -> State:
        steps = state.steps + 1
        change = Params({name: mean[name] - state.x[name] for name in state.m})
        m = self.b1 * state.m + (1 - self.b1) * change
        v = Params(
            {n: second_moment(v, change[n], self.optimiser, self.b2) for n, v in state.v.items()}
        )
        rate = self.eta * (self.bias_factor(int(steps)) if self.bias_correction else 1.0)
        x = {n: state.x[n] + rate * direction(m[n], v[n], self.tau) for n in m}
        return State(Params({**mean, **x}), m, v, steps)

    def bias_factor(self, steps: int) -> float:
        """Return Keras' factor of the learning rate after these steps."""
        if self.optimiser == "adagrad":
            return 1.0
        return (1 - self.b2**steps) ** 0.5 / (1 - self.b1**steps)
