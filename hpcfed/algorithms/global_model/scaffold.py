"""SCAFFOLD: control variates correct each local step for client drift.

Karimireddy et al., ICML 2020, arXiv:1910.06378, algorithm 1.

Objective: F_k(w) + <c - c_k, w>
Server: x <- x + eta_g mean_k (w_k - x); c <- c + |S| / K mean_k (c_k^new - c_k)
Round:
1. The server sends its model x and its control variate c.
2. Each client trains; every step is corrected by c - c_k.
3. It computes its new control variate, c_k - c + (x - w_k) / (steps lr), or its gradient at x
   (control = "gradient").
4. It sends the changes of its model and of its control variate, the latter times `unit`.
5. The server steps along both means, that of the control variates times the cohort's share.

Deviations: float buffers of batch normalisation are averaged like parameters and have no control
variate. eta_g does not apply to them, because a variance could become negative. What a client sends
of its control variate is in units of the model's change, a power of two, which no value notices,
and the change of its model is an update of what the control variate alone would make: a bound on
the length of an upload, and noise for it, then treat both alike, and do not count earlier noise.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Job, LocalSteps, Mean, Params, RoundBased, Upload
from hpcfed.training.local import gradient


@dataclass(frozen=True)
class State:
    """State of the server: its model and its control variate.

    x: the model.
    c: the control variate, for parameters alone.
    unit: see `Scaffold.unit`.
    """

    x: Params
    c: Params
    unit: Tensor


class Scaffold(RoundBased):
    """FedAvg with control variates.

    A client's control variate is in its memory; before its first round it is 0.
    """

    guide = Guide(
        data="different labels",
        sent="all weights, twice",
        won="fewer rounds than FedAvg and FedProx on similar and dissimilar data",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean of the updates of the model."""
    eta_g: PositiveFloat = 1.0
    """Step size of the server."""
    control: Literal["steps", "gradient"] = "steps"
    """New control variate: from the steps taken (option II), or as the gradient at the received
    model (option I).
    """

    local_defaults: ClassVar[dict[str, Any]] = {"optimiser": "sgd", "lr": 0.1}

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if job.local.optimiser != "sgd" or job.local.momentum:
            reasons["job"] = (
                "needs plain SGD, because control variates are mean gradients; set "
                "local.optimiser = 'sgd', momentum 0"
            )
        return reasons

    def init(self, fed: Federation) -> State:
        x = fed.initial()
        return State(x, x.pick(fed.trainable) * 0, torch.tensor(self.unit(fed)))

    def model(self, state: State) -> Params:
        return state.x

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download, c = fed.down(client, state.x), fed.down(client, state.c)
        self.receive(client, download)
        control = Params(client.memory.get("control", c * 0))
        new = self.at_start(fed, client, download, t) if self.control == "gradient" else None
        loss = partial(self.loss, client, download)
        correction = c - control
        with LocalSteps(fed, client, t) as steps:
            for x, y in steps:
                value, slope = steps.gradient(loss, x, y)
                names = steps.optimiser.names
                corrected = [g + correction[n] for n, g in zip(names, slope, strict=True)]
                steps.step(value, corrected)
        change = client.params() - download
        if new is None:
            new = control - c - (1 / (len(steps) * steps.lr)) * change.pick(fed.trainable)
        client.memory["control"] = new
        unit = self.unit(fed)
        return Upload(
            x=Mean.of(change, self.weight(client)),
            c=Mean.of(unit * (new - control)),
            relative_to={"x": expected_change(change, c, unit), "c": c * 0},
        )

    def unit(self, fed: Federation) -> float:
        """Return steps lr of a client of mean size, rounded to a power of two.

        A change of a control variate times this is about as long as a change of the model.
        """
        local = fed.job.local
        steps = local.steps or local.epochs * math.ceil(np.mean(fed.sizes) / local.batch)
        return 2.0 ** round(math.log2(steps * local.lr))

    def at_start(self, fed: Federation, client: Client, received: Params, t: int) -> Params:
        """Return the mean gradient over the client's data at the received model.

        The model does not change, nor do its statistics.
        """
        with client.borrowed():
            gradient(fed, client, t, partial(self.loss, client, received), phase="control")
        return client.gradient()

    def averaged(self, fed: Federation, state: State) -> dict[str, Params]:
        change = expected_change(state.x, state.c, float(state.unit))
        return {"x": change, "c": state.c * 0}

    def server(self, fed: Federation, state: State, mean: Any, cohort: list[int]) -> State:
        dx = Params({n: self.eta_g * v if n in state.c else v for n, v in mean["x"].items()})
        step = fed.share(cohort) / float(state.unit)
        return State(state.x + dx, state.c + step * mean["c"], state.unit)


def expected_change(model: Params, c: Params, unit: float) -> Params:
    """Return the change of a model that the server's control variate alone would make."""
    return Params({name: -unit * c[name] if name in c else v * 0 for name, v in model.items()})
