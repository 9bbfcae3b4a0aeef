"""FedBuff: the server buffers the clients' updates and makes a new model of every K of them.

Nguyen et al., AISTATS 2022, arXiv:2106.06639, algorithm 1. s(tau) = (1 + tau)^-1/2. No client waits
for another.

Objective: F_k(w)
Server: w <- w - eta_g / K sum_k s(tau_k) (w_v - w_k)
Round:
1. A client receives the server's present model, of version v, and trains it.
2. It sends its update w_v - w_k when its virtual time has passed.
3. The server adds the update to its buffer, damped by tau_k, the number of new models since v.
4. After K updates it steps along their mean and empties the buffer.
5. As many clients as a cohort has work at the same time.

Deviations: the server takes the mean of the buffer, as the paper's algorithm does; FLSim adds the
updates up, so that its learning rate is 1 / K of the one here, and divides s(tau) by s of a given
mean staleness, 1. At the end of an epoch FLSim makes a model of a buffer that is not full; here
the buffer stays as it is from round to round and in a checkpoint. `momentum` is that of FLSim's
server: m <- momentum * m + buffer / K, w <- w - eta_g m. In APPFL a client's update is relative to
the present model; here it is relative to the model from which the client started. The defaults of K
and s are from memory of the paper. Batch statistics are averaged like parameters. A client would
also send the number of its version; it is part of the message's header and not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from hpcfed import Client, EventBased, Federation, Guide, Job, Params, Share, Upload
from hpcfed.algorithms.asynchronous.staleness import damping
from hpcfed.algorithms.events import Coordinator, Decision, Work, train
from hpcfed.config.conditions import field, other_than


@dataclass(frozen=True)
class State:
    """State of the server: its model, the buffer and the momentum.

    model: the server's model.
    buffer: sum of the damped updates since the last new model.
    momentum: momentum of the server's steps; empty if algorithm.momentum = 0.
    """

    model: Params
    buffer: Params
    momentum: Params


class Buffer(Coordinator):
    """Coordinator that makes a new model after every K reports."""

    buffers = True

    def __init__(self, method: FedBuff) -> None:
        self.method, self.count = method, 0  # number of updates in the buffer

    def end(self, job: Work) -> Decision:
        self.count = (self.count + job.reports) % self.method.K
        full = job.reports and not self.count
        return Decision(closes=0 if full else None, released=(job.client,))

    def close(self, fed: Federation, state: State, group: int) -> State:
        method = self.method
        step = (1 / method.K) * state.buffer
        if method.momentum:
            step = method.momentum * state.momentum + step
        momentum = step if method.momentum else state.momentum
        return State(state.model - method.lr * step, state.buffer * 0.0, momentum)

    def to_tree(self) -> dict[str, Any]:
        return {"count": self.count}

    def from_tree(self, tree: dict[str, Any]) -> None:
        self.count = tree["count"]


class FedBuff(EventBased):
    """Asynchronous method whose server makes a new model of every K updates.

    With K = participation * clients, equal speeds, lr = 1 and staleness = "const" the first model
    is FedAvg's uniform mean.
    """

    guide = Guide(
        data="alike to moderately different",
        sent="all weights, when a client is done",
        won="3.3 times the speed of synchronous rounds at scale",
    )

    K: PositiveInt = 10
    """Number of updates from which the server makes a new model."""
    lr: PositiveFloat = 1.0
    """Learning rate of the server, eta_g."""
    momentum: Share = 0.0
    """Momentum of the server's steps, as in FLSim."""
    staleness: Literal["const", "poly"] = "poly"
    """How the weight of an update falls with its staleness s: not at all, or as (s + 1)^-a."""
    a: NonNegativeFloat = field(0.5, used_if={"staleness": other_than("const")})
    """Poly: a, how fast the weight falls."""

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        edges = job.edges.number or 1
        merges = job.rounds * (self.merges or job.cohort_size) // edges
        if self.K > merges:
            where = f" at each of {edges} edges" if edges > 1 else ""
            reasons["job"] = (
                f"needs at least algorithm.K = {self.K} merges for a new model, but the job's "
                f"{job.rounds} rounds have {merges}{where}; set a smaller algorithm.K, or more "
                f"rounds"
            )
        return reasons

    @property
    def coordinator(self) -> Buffer:
        return Buffer(self)

    def init(self, fed: Federation) -> State:
        model = fed.initial()
        return State(model, model * 0.0, model * 0.0 if self.momentum else Params())

    def model(self, state: State) -> Params:
        return state.model

    def work(self, fed: Federation, client: Client, job: Work) -> Upload:
        download = fed.down(client, client.memory.pop("download"))
        self.receive(client, download)
        train(self, fed, client, download, job)
        return Upload(download - client.params())

    def merge(
        self, fed: Federation, job: Work, current: State, up: Params, near: dict[int, Params]
    ) -> State:
        weight = damping(job.staleness, self.staleness, self.a, b=0)
        return replace(current, buffer=current.buffer + weight * up)
