"""FedBuff: the server adds what clients send to a buffer, and makes a new model of every K updates.

Nguyen et al., AISTATS 2022, arXiv:2106.06639, algorithm 1: a client that starts from version v of
the model w sends D = w_v - w_local; the server adds s(tau) D to its buffer, tau the number of new
models since v, and after K updates w <- w - eta_g * buffer / K. So many clients as a cohort has
work at the same time; none waits for another. s(tau) = (1 + tau)^-1/2.

Deviations: the buffer's mean is taken, as the paper's algorithm has it; FLSim adds the updates up,
so that its learning rate is 1 / K of the one here. FLSim makes a model of a buffer that is not full
at the end of an epoch; here it waits, over rounds and in a checkpoint. `momentum` is that of
FLSim's server: m <- momentum * m + buffer / K, w <- w - eta_g m. APPFL subtracts the present model
where the one that the client started from stands here. The defaults of K and s are from memory of
the paper. Batch statistics are averaged as parameters are. The number of its version, which a
client would send too, is part of the message's header and not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from hpcfed.algorithms.asynchronous.staleness import damping
from hpcfed.algorithms.base import Share
from hpcfed.algorithms.events import Coordinator, Decision, EventBased, Work, train
from hpcfed.core.params import Params

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation


@dataclass(frozen=True)
class State:
    """model: the server's.  buffer: sum of the damped updates that wait.  momentum: of its
    steps.
    """

    model: Params
    buffer: Params
    momentum: Params


class Buffer(Coordinator):
    """A new model after so many reports."""

    buffers = True

    def __init__(self, method: FedBuff) -> None:
        self.method, self.count = method, 0  # updates in the buffer

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
    """K = participation * clients, equal speeds, lr = 1 and staleness = "const": the first model is
    FedAvg's uniform mean.
    """

    edges: ClassVar[str] = "models"

    K: PositiveInt = 10
    """Updates of which the server makes a new model."""
    lr: PositiveFloat = 1.0
    """Learning rate of the server, eta_g."""
    momentum: Share = 0.0
    """Momentum of the server's steps, as in FLSim."""
    staleness: Literal["const", "poly"] = "poly"
    """How the weight of an update falls with its staleness s: not, or as (s + 1)^-a."""
    a: NonNegativeFloat = 0.5
    """Poly: how fast."""

    def refuses(self, job: Job) -> dict[str, str]:
        found = super().refuses(job)
        if self.staleness == "const":
            found["algorithm.a"] = "staleness = 'const' does not have it"
        return found

    @property
    def coordinator(self) -> Buffer:
        return Buffer(self)

    def init(self, fed: Federation) -> State:
        model = fed.initial()
        return State(model, model * 0.0, model * 0.0 if self.momentum else Params())

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        return state.model

    def work(self, fed: Federation, client: Client, job: Work) -> Params:
        given = fed.down(client, client.memory.pop("download"))
        self.receive(client, given)
        train(self, fed, client, given, job)
        return fed.up(client, given - client.params())

    def merge(
        self, fed: Federation, job: Work, held: State, up: Params, near: dict[int, Params]
    ) -> State:
        weight = damping(job.staleness, self.staleness, self.a, b=0)
        return replace(held, buffer=held.buffer + weight * up)
