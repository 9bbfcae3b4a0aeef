"""Examples of wanted classes, made from a trained model alone: what it takes for them, and what
the statistics of its batch normalisation remember.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpcfed.algorithms.data_free.generators import Generator, check_finite, example_shape
from hpcfed.core import rng
from hpcfed.core.params import Params
from hpcfed.training.losses import moment_distance
from hpcfed.training.server import call

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation


@dataclass(frozen=True)
class Inversion:
    """How examples are made: these many steps of Adam down
    CE + moments sum_l `moment_distance` + prior |x|^2, with the mean over values in |x|^2.

    by: the values of the examples are changed themselves, or a generator's weights.  lr: of Adam.
    noise: values from which a generator makes an example.
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
        """Examples of these classes, [n, *shape], as models take them.

        model: parameters and buffers, which stay as they are.  labels: [n], on the device.  key:
        names what is drawn.  Raises DivergedError where a value is nan or infinite.
        """
        skeleton = fed.module(architecture)
        skeleton.model.eval()
        g = rng.torch_stream(fed.seed, "inversion", *key)
        if self.by == "generator":
            generator = Generator(fed, self.noise, fed.classes)
            weights = generator.initial()
            leaves = [v.requires_grad_() for v in weights.values()]
            made = lambda: generator.make(weights, len(labels), g, labels)  # noqa: E731
        else:
            values = torch.randn(len(labels), *example_shape(fed), generator=g).to(fed.device)
            leaves = [values.requires_grad_()]
            made = lambda: values  # noqa: E731
        descent = torch.optim.Adam(leaves, self.lr)
        with watch_moments(skeleton.model) as distances:
            for _ in range(self.steps):
                distances.clear()
                descent.zero_grad()
                x = made()
                logits = call(skeleton, model, x)
                value = F.cross_entropy(logits, labels) + self.prior * x.square().mean()
                value = value + self.moments * sum(distances, torch.zeros_like(value))
                value.backward()
                descent.step()
                fed.clock.heartbeat.step()
        with torch.no_grad():
            return check_finite(fed, "made examples", made().detach().clone(), "of their making")


@contextmanager
def watch_moments(module: nn.Module) -> Iterator[list[Tensor]]:
    """Inside, each pass of the module adds the `moment_distance` of every layer of batch
    normalisation to the list; nothing where it has none.
    """
    found: list[Tensor] = []

    def look(norm: _BatchNorm, given: tuple[Tensor]) -> None:
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None and variance is not None
        found.append(moment_distance(given[0], mean, variance, norm.eps))

    norms = [
        m for m in module.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None
    ]
    hooks = [norm.register_forward_pre_hook(look) for norm in norms]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
