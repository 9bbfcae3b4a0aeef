"""Training of a client's proxy in a round of FedType, by the method that aggregates proxies."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hpcfed import LocalSteps, Params
from hpcfed.algorithms.bayesian.pfedbayes import Gaussians
from hpcfed.algorithms.proxies.pairs import in_proxy
from hpcfed.training.optimisers import keep_moments, make_optimiser

if TYPE_CHECKING:
    from hpcfed.algorithms.proxies.fedtype import FedType


class Proxy:
    """A client's proxy in a round of FedAvg or FedProx."""

    def __init__(self, method: FedType, received: Params, steps: LocalSteps):
        self.method, self.client, self.steps, self.received = method, steps.client, steps, received
        settings = steps.fed.job.local
        self.optimiser = make_optimiser(self.client, settings, steps.lr, in_proxy, "proxy")
        self.loss = partial(method.proxy_loss, received)

    def learn(self, x: Any, y: Tensor) -> Tensor:
        """Train the proxy on a batch and return its loss."""
        self.descend(self.steps.value(self.loss, x, y))
        return self.value

    def descend(self, value: Tensor) -> None:
        """Take a step of the proxy down a loss."""
        self.steps.backward(value)
        self.step(value)

    def step(self, value: Tensor) -> None:
        """Take a step of the proxy with the gradient of the model."""
        self.optimiser.step()
        self.value = value.detach()

    def end(self) -> Params:
        """Return the proxy's upload."""
        keep_moments(self.client, self.optimiser, self.steps.fed.job.local, "proxy")
        return self.client.params(self.method.shared)


class Personal(Proxy):
    """A client's proxy in a round of pFedMe."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.anchor = self.client.params(self.optimiser.names.__contains__)

    def learn(self, x: Any, y: Tensor) -> Tensor:
        method = self.method.pfedme()
        method.learn(
            self.client, self.anchor, partial(self.steps.value, self.loss, x, y), self.descend
        )
        return self.value

    def end(self) -> Params:
        return Params({**super().end(), **self.anchor})


class Gaussian(Proxy):
    """A client's proxy in a round of pFedBayes; the personal distribution stays with the client."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        names = self.optimiser.names
        self.gaussians = Gaussians(self.method.pfedbayes(), self.steps, self.received, names)

    def learn(self, x: Any, y: Tensor) -> Tensor:
        self.gaussians.learn(partial(self.steps.value, self.loss, x, y), self.step)
        return self.value

    def end(self) -> Params:
        sent = super().end()
        buffers = sent.pick(lambda name: name not in self.optimiser.names)
        return Params({**self.gaussians.end(), **buffers})


PROXIES: dict[str, type[Proxy]] = {
    "fedavg": Proxy,
    "fedprox": Proxy,
    "pfedme": Personal,
    "pfedbayes": Gaussian,
}
