"""Model inversion: make examples of given classes from a trained model alone.

The examples fit the model's predictions and the statistics of its batch normalisation.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpcfed import Federation, Params, rng
from hpcfed.algorithms.data_free.generators import Generator, check_finite, example_shape
from hpcfed.training.losses import moment_distance
from hpcfed.training.server import call


@dataclass(frozen=True)
class Inversion:
    """Optimise examples by Adam on CE + moments sum_l `moment_distance` + prior |x|^2.

    |x|^2 is the mean over values.
    steps: steps of Adam.
    lr: learning rate of Adam.
    by: optimise the values of the examples, or the weights of a generator.
    noise: number of noise values from which a generator makes an example.
    """

    steps: int
    lr: float
    moments: float
    prior: float
    by: Literal["examples", "generator"] = "examples"
    noise: int = 100

    def examples(
        self, fed: Federation, architecture: str, model: Params, labels: Tensor, *key: str | int
    ) -> Tensor:
        """Make examples of these classes, [n, *shape], as models take them.

        model: parameters and buffers, which do not change.
        labels: [n], on the device.
        key: names the random stream.
        Raises DivergedError if a value is nan or infinite.
        """
        skeleton = fed.module(architecture)
        skeleton.model.eval()
        g = rng.torch_stream(fed.seed, "inversion", *key)
        if self.by == "generator":
            generator = Generator(fed, self.noise, fed.classes)
            weights = generator.initial()
            leaves = [v.requires_grad_() for v in weights.values()]
            make = lambda: generator.make(weights, len(labels), g, labels)  # noqa: E731
        else:
            values = torch.randn(len(labels), *example_shape(fed), generator=g).to(fed.device)
            leaves = [values.requires_grad_()]
            make = lambda: values  # noqa: E731
        descent = torch.optim.Adam(leaves, self.lr)
        with watch_moments(skeleton.model) as distances:
            for _ in range(self.steps):
                distances.clear()
                descent.zero_grad()
                x = make()
                logits = call(skeleton, model, x)
                value = F.cross_entropy(logits, labels) + self.prior * x.square().mean()
                value = value + self.moments * sum(distances, torch.zeros_like(value))
                value.backward()
                descent.step()
                fed.clock.heartbeat.step()
        with torch.no_grad():
            return check_finite(fed, "made examples", make().detach().clone(), "of their making")


@contextmanager
def watch_moments(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the `moment_distance` of every layer of batch normalisation, inside the block.

    Each pass of the module appends to the list. The list stays empty if the module has no such
    layers.
    """
    distances: list[Tensor] = []

    def look(norm: _BatchNorm, inputs: tuple[Tensor]) -> None:
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None and variance is not None
        distances.append(moment_distance(inputs[0], mean, variance, norm.eps))

    norms = [
        m for m in module.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None
    ]
    hooks = [norm.register_forward_pre_hook(look) for norm in norms]
    try:
        yield distances
    finally:
        for hook in hooks:
            hook.remove()
