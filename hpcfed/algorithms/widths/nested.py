"""Narrower models inside a client's model, which share its weights: FjORD's ordered dropout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor, nn
from torch.func import functional_call

from hpcfed.algorithms.widths.submodels import Wide, window
from hpcfed.core.params import Params
from hpcfed.models.widths import Window, parse, take

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation


@dataclass(frozen=True)
class Inner:
    """A narrower model inside a client's: its weights are the first units of the client's,
    gradients go there.

    Its batch statistics are its own: those in its module.
    """

    module: nn.Module
    outer: nn.Module
    at: Window

    def __call__(self, x: Tensor) -> Tensor:
        return functional_call(
            self.module, dict(take(dict(self.outer.named_parameters()), self.at)), (x,)
        )


def inner(
    fed: Federation, client: Client, architecture: str, statistics: Mapping[str, Tensor]
) -> Inner:
    """The narrower model of this architecture inside the client's, in train mode, with these batch
    statistics.
    """
    module = fed.module(architecture)
    for name, value in statistics.items():
        module.view(name).copy_(value)
    at = within(window(fed, architecture), window(fed, client.architecture))
    return Inner(module.model.train(), client.model, at)


def within(narrow: Window, wide: Window) -> Window:
    """Where a window's places are in the tensors of a wider window that contains it."""
    if not wide:
        return narrow
    return {
        name: tuple(map(np.searchsorted, wide[name], places)) for name, places in narrow.items()
    }


def tensors(fed: Federation, client: Client, architectures: list[str]) -> Params:
    """What the client sends: its tensors, and the batch statistics of the models inside it,
    "architecture/name".

    The client's own statistics are sent so too, unless its model is the whole one.
    """
    norms, name = set(client.skeleton.layout.buffers).__contains__, client.architecture
    values = client.params()
    if parse(name).width < 1:
        values = Params(
            {**values.pick(lambda n: not norms(n)), **values.pick(norms).prefixed(f"{name}/")}
        )
    for architecture in architectures:
        values |= fed.module(architecture).items(norms).clone().prefixed(f"{architecture}/")
    return values


def split_statistics(values: Params, t: int) -> Wide:
    """The state of weights and statistics by name, the latter with "/" in theirs."""
    return Wide(values.pick(lambda n: "/" not in n), values.pick(lambda n: "/" in n), t)
