"""SCAFFOLD: control variates correct each local step for client drift.

Karimireddy et al., ICML 2020, arXiv:1910.06378, algorithm 1.

Deviations: float buffers of batch normalisation are averaged like parameters and have no control
variate. eta_g does not apply to them, because a variance could become negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import PositiveFloat

from hpcfed.algorithms.base import Guide, RoundBased
from hpcfed.core.params import Mean, Params
from hpcfed.training.local import LocalSteps, gradient
from hpcfed.training.losses import inner_product

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation


@dataclass(frozen=True)
class State:
    """State of the server: its model and its control variate.

    x: the model.
    c: the control variate, for parameters alone.
    """

    x: Params
    c: Params


class Scaffold(RoundBased):
    """FedAvg with control variates.

    A client's control variate is in its memory; before its first round it is 0.
    """

    guide = Guide(
        data="different labels",
        sent="all weights, twice",
        won="fewer rounds than FedAvg and FedProx on similar and dissimilar data",
    )

    edges: ClassVar[str] = "sums"

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean of the updates of the model."""
    eta_g: PositiveFloat = 1.0
    """Step size of the server."""
    control: Literal["steps", "gradient"] = "steps"
    """New control variate: from the steps taken (option II), or as the gradient at the received
    model (option I).
    """

    survival: ClassVar[bool] = True
    local_defaults: ClassVar[dict[str, Any]] = {"optimiser": "sgd", "lr": 0.1}

    def refuses(self, job: Job) -> dict[str, str]:
        found = super().refuses(job)
        if job.local.optimiser != "sgd" or job.local.momentum:
            found["job"] = (
                "needs plain SGD, because control variates are mean gradients; set "
                "local.optimiser = 'sgd', momentum 0"
            )
        return found

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        trained = fed.store.layout(fed.architectures[k]).params
        return (fed.shapes(k=k).nbytes + fed.shapes(trained.__contains__, k).nbytes,) * 2

    def init(self, fed: Federation) -> State:
        params = fed.store.layout(fed.architectures[0]).params
        x = fed.initial()
        return State(x, Params({name: x[name] * 0 for name in params}))

    def receive(self, client: Client, state: State) -> None:
        client.load(state.x)

    def local(self, fed: Federation, client: Client, state: State, t: int) -> tuple[Mean, Params]:
        client.load(fed.down(client, state.x))
        c, own = fed.down(client, state.c), Params(client.memory.get("control", state.c * 0))
        new = self.at_start(fed, client, state, t) if self.control == "gradient" else None
        with LocalSteps(fed, client, t) as steps:
            for x, y in steps:
                value = steps.value(lambda m, x, y: self.loss(client, state, m, x, y), x, y)
                steps.backward(value + inner_product(steps.model, c - own))
                steps.step(value)
        change = client.params() - state.x
        if new is None:
            new = own - c - (1 / (len(steps) * steps.lr)) * change.pick(c.__contains__)
        client.memory["control"] = new
        return Mean.of(change, self.weight(client)), new - own

    def at_start(self, fed: Federation, client: Client, state: State, t: int) -> Params:
        """Return the mean gradient over the client's data at the received model.

        The model does not change, nor do its statistics.
        """
        with client.borrowed():
            gradient(
                fed, client, t, lambda m, x, y: self.loss(client, state, m, x, y), phase="control"
            )
        return Params(client.skeleton.layout.views(client.skeleton.grad)).clone()

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        done = fed.run(cohort, lambda client: self.local(fed, client, state, t))
        # changes of the control variates of this rank's clients
        changes = {k: dc for k, (_, dc) in done.items()}
        dx = fed.mean(((k, dx) for k, (dx, _) in done.items()), keep=state.x * 0)
        dc = fed.mean(((k, Mean.of(dc)) for k, dc in changes.items()), keep=state.c * 0)
        dx = Params({name: self.eta_g * v if name in state.c else v for name, v in dx.items()})
        return State(state.x + dx, state.c + (len(cohort) / fed.K) * dc)
