"""FedAvg then Reptile: two phases of training give a model that is easy to personalise.

Jiang et al. (Improving Federated Learning Personalization via Model Agnostic Meta Learning), 2019,
arXiv:1909.12488, section 4. In phase 1 the server has momentum, beta, and the step eta. In phase 2
all clients weigh equally, and Step is Adam's, whose moments begin with the phase. Phase 3, in which
each client fine-tunes the model with the optimiser of training, is the job's: [adapt]. The full
text and code were not at hand. The implementation is based on the abstract and on summaries, so
that K, the rates, the momentum and the round of the switch are fields, whose defaults are not the
paper's.

Objective: F_k(w)
Server: m <- beta m + sum_k p_k (w_k - w); w <- w + eta m; w <- Step(w, mean_k (w - w_k))
Round:
1. The server sends its model to the cohort.
2. In phase 1 clients train as in FedAvg, and the server steps along the weighted mean change with
   momentum.
3. In phase 2 each client takes K steps.
4. The server of phase 2 takes the uniform mean of w - w_k as a gradient for Adam, the last formula.
5. After the last round each client fine-tunes the model, as [adapt] says.

Deviations: float buffers of batch normalisation are averaged, not adapted. The clients' optimiser
is the job's in both phases.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Share, Upload
from hpcfed.algorithms.base import warn_of_short_run
from hpcfed.algorithms.global_model.moments import (
    Decay,
    direction,
    second_moment,
    step_with_momentum,
)
from hpcfed.config.conditions import Unused, below, field, unless


@dataclass(frozen=True)
class State:
    """State of the server: its model and the moments of its optimiser.

    x: the model.
    m, v: moments of the server's optimiser, of parameters alone.
    steps: number of the server's steps in the second phase, a scalar.
    """

    x: Params
    m: Params
    v: Params
    steps: Tensor


class Reptile(RoundBased):
    """FedAvg followed by rounds of Reptile.

    Without rounds of Reptile, and with a server that steps by 1 without momentum, it is FedAvg.
    """

    guide = Guide(
        data="users whose models are to be personal",
        sent="all weights",
        won="EMNIST-62: a start from which few steps adapt",
    )

    unused: ClassVar[Unused] = {
        "weighting": unless("first_rounds"),
        "local.epochs": unless("first_rounds"),
        "local.steps": unless("first_rounds"),
    }
    trains_once: ClassVar[bool] = False

    first_rounds: NonNegativeInt = 50
    """Number of rounds of FedAvg before those of Reptile."""
    first_lr: PositiveFloat = field(1.0, used_if="first_rounds")
    """Step size of the server in the rounds of FedAvg."""
    first_momentum: Share = field(0.9, used_if="first_rounds")
    """Momentum of the server in the rounds of FedAvg."""
    inner_steps: PositiveInt = field(5, used_if={"first_rounds": below("rounds")})
    """Steps of a client in a round of Reptile (K of the paper)."""
    server_optimiser: Literal["adam", "sgd"] = field(
        "adam", used_if={"first_rounds": below("rounds")}
    )
    """Optimiser of the server in the rounds of Reptile."""
    server_lr: PositiveFloat = field(0.01, used_if={"first_rounds": below("rounds")})
    """Step size of the server in the rounds of Reptile."""
    b1: Decay = field(0.9, used_if={"server_optimiser": "adam"})
    """Adam: decay of the first moment."""
    b2: Decay = field(0.999, used_if={"server_optimiser": "adam"})
    """Adam: decay of the second moment."""
    tau: PositiveFloat = field(1e-3, used_if={"server_optimiser": "adam"})
    """Adam: added to the root of the second moment."""

    def init(self, fed: Federation) -> State:
        warn_of_short_run(fed, "first_rounds", "there are no rounds of Reptile")
        x = fed.initial()
        zero = x.pick(fed.trainable) * 0
        return State(x, zero, zero, torch.zeros((), dtype=torch.int64, device=fed.device))

    def model(self, state: State) -> Params:
        return state.x

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, state.x)
        self.receive(client, download)
        phase1 = t < self.first_rounds
        how = {} if phase1 else {"amount": self.inner_steps}
        self.train(fed, client, download, t, **how)
        sent = Mean.of(client.params(), self.weight(client) if phase1 else 1.0)
        return Upload(sent, relative_to=download)

    def server(self, fed: Federation, state: State, mean: Params, cohort: list[int]) -> State:
        return self.first(state, mean) if fed.t < self.first_rounds else self.second(state, mean)

    def first(self, state: State, mean: Params) -> State:
        """Return the state after a step of the server in phase 1."""
        x, m = step_with_momentum(state.x, state.m, mean, self.first_momentum, self.first_lr)
        return State(x, m, state.v, state.steps)

    def second(self, state: State, mean: Params) -> State:
        """Return the state after a step of the server in phase 2, whose moments begin at 0."""
        step = mean.pick(state.m.__contains__) - state.x
        k = int(state.steps) + 1
        if self.server_optimiser == "sgd":
            x = state.x.pick(step.__contains__) + self.server_lr * step
            x = mean if self.server_lr == 1 else Params({**mean, **x})
            return State(x, state.m, state.v, state.steps + 1)
        m = (1 - self.b1) * step if k == 1 else self.b1 * state.m + (1 - self.b1) * step
        old = state.v * 0 if k == 1 else state.v
        v = Params({n: second_moment(old[n], step[n], "adam", self.b2) for n in step})
        rate = self.server_lr * (1 - self.b2**k) ** 0.5 / (1 - self.b1**k)
        params = {n: state.x[n] + rate * direction(m[n], v[n], self.tau) for n in step}
        return State(Params({**mean, **params}), m, v, state.steps + 1)
