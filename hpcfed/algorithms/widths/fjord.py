"""FjORD: ordered dropout; each step trains the first units of each layer, at a width drawn for it.

Horvath et al., NeurIPS 2021, arXiv:2102.13451, algorithm 1. w_r is the model at width r, a part of
every wider one, and R_k the largest width of client k. Each width has batch statistics of its own,
which are averaged over the clients that may draw it (the whole model's stay as they start if no
client has width 1).

Objective: mean_(r <= R_k) F_k(w_r)
Server: w_i <- sum_(k: i in R_k) p_k w_ki / sum_(k: i in R_k) p_k
Round:
1. The server sends each client the model at its largest width.
2. For each step the client draws a width evenly from those of models.widths up to its largest.
3. It trains the first units of each layer, at this width; with kd it trains its largest width, and
   the narrower model learns from that one's soft predictions instead of labels.
4. It sends the model at its largest width, and the batch statistics of each width.
5. The server averages each value over the clients whose model has it, by examples; others stay.

Deviations: with kd the soft target is compared by KL(teacher || student), whose gradient is that of
the soft cross-entropy in public code. A width is drawn for a step, not for an example. Virtual time
counts each step as one at the client's widest width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn
from torch.func import functional_call

from hpcfed import Client, Federation, Guide, Mean, Model, Params, RoundBased, Upload, rng, sgd
from hpcfed.algorithms.widths import submodels
from hpcfed.config.conditions import SEVERAL, field
from hpcfed.core.architecture import Architecture
from hpcfed.models.widths import Window, take
from hpcfed.training.losses import distil, soften


class FjORD(RoundBased):
    """With 1 as the only width FjORD is FedAvg, bit for bit."""

    guide = Guide(
        data="alike to different labels",
        sent="a nested slice of the model",
        won="devices of different strength, above random dropout",
    )

    accepts: ClassVar[str] = "widths"
    per: ClassVar[str] = "value"

    kd: bool = field(False, used_if={"models.widths": SEVERAL})
    """Each step also trains the client's full model, and the narrower one learns from its soft
    predictions.
    """

    @property
    def needs_classes(self) -> str:
        return "algorithm.kd distils class probabilities" if self.kd else ""

    def inside(self, fed: Federation, architecture: str) -> list[str]:
        """Return the narrower architectures that a client with this one trains too."""
        return [
            a
            for a in submodels.levels(fed)
            if Architecture.parse(a).width < Architecture.parse(architecture).width
        ]

    def init(self, fed: Federation) -> submodels.Wide:
        return submodels.start(fed, submodels.levels(fed)[1:])

    def columns(self, fed: Federation, state: submodels.Wide) -> dict[str, float]:
        return submodels.accuracies(self, fed, state, submodels.levels(fed)[1:])

    def offer(self, fed: Federation, client: Client, state: submodels.Wide) -> Params:
        piece = submodels.piece(client, state, submodels.window(fed, client.architecture))
        names = self.inside(fed, client.architecture)
        return Params(
            {**piece, **state.statistics.pick(lambda name: name.partition("/")[0] in names)}
        )

    def receive(self, client: Client, state: Params) -> None:
        client.load(state.pick(lambda name: "/" not in name))

    def step(
        self,
        client: Client,
        state: Params,
        nets: Sequence[Model | Inner],
        draws: np.random.Generator,
        model: Model,
        x: Any,
        y: Tensor,
    ) -> Tensor:
        """Return the loss of one step at the width drawn for it, and with kd at the widest too."""
        net = nets[int(draws.integers(len(nets)))]
        if net is model or not self.kd:
            return self.loss(client, state, net, x, y)
        z = model(x)
        return client.task.loss(z, y) + distil(soften(z), net(x))

    def averaged(self, fed: Federation, state: submodels.Wide) -> Params:
        return Params({**state.weights, **state.statistics})

    def local(self, fed: Federation, client: Client, state: submodels.Wide, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        names = self.inside(fed, client.architecture)
        inner = [inner_model(fed, client, a, download.under(f"{a}/")) for a in names]
        nets: list[Model | Inner] = [client.model, *inner]
        draws = rng.stream(fed.seed, "ordered dropout", t, client.id)
        sgd(fed, client, t, partial(self.step, client, download, nets, draws), views=self.views)
        at = submodels.window(fed, client.architecture)
        return Upload(
            Mean.of(collect_tensors(fed, client, names), self.weight(client), at),
            relative_to=name_statistics(client, download),
        )

    def server(
        self, fed: Federation, state: submodels.Wide, mean: Params, cohort: list[int]
    ) -> submodels.Wide:
        return split_statistics(mean, state.t + 1)


@dataclass(frozen=True)
class Inner:
    """A narrower model inside a client's model.

    Its weights are the first units of the client's, which also receive the gradients. It has batch
    statistics of its own, in its module.
    """

    module: nn.Module
    outer: nn.Module
    at: Window

    def __call__(self, x: Tensor) -> Tensor:
        return functional_call(
            self.module, dict(take(dict(self.outer.named_parameters()), self.at)), (x,)
        )


def inner_model(
    fed: Federation, client: Client, architecture: str, statistics: Mapping[str, Tensor]
) -> Inner:
    """Return the narrower model of this architecture inside the client's, in train mode.

    statistics: its batch statistics.
    """
    module = fed.module(architecture)
    for name, value in statistics.items():
        module.view(name).copy_(value)
    at = within(submodels.window(fed, architecture), submodels.window(fed, client.architecture))
    return Inner(module.model.train(), client.model, at)


def within(narrow: Window, wide: Window) -> Window:
    """Return the places of a window in the tensors of a wider window that contains it."""
    if not wide:
        return narrow
    return {
        name: tuple(map(np.searchsorted, wide[name], places)) for name, places in narrow.items()
    }


def collect_tensors(fed: Federation, client: Client, architectures: list[str]) -> Params:
    """Return the client's upload: its tensors, and the batch statistics of the models inside it.

    The statistics are named "architecture/name". So are the client's own, unless its model is the
    whole one.
    """
    norms = set(client.skeleton.layout.buffers).__contains__
    values = name_statistics(client, client.params())
    for architecture in architectures:
        values |= fed.module(architecture).items(norms).clone().prefixed(f"{architecture}/")
    return values


def name_statistics(client: Client, values: Params) -> Params:
    """Return tensors of the client's model, its batch statistics named "architecture/name".

    The whole model's keep their names.
    """
    norms, name = set(client.skeleton.layout.buffers).__contains__, client.architecture
    if Architecture.parse(name).width == 1:
        return values
    return Params(
        {**values.pick(lambda n: not norms(n)), **values.pick(norms).prefixed(f"{name}/")}
    )


def split_statistics(values: Params, t: int) -> submodels.Wide:
    """Return the state of weights and statistics by name; names of statistics contain "/"."""
    return submodels.Wide(values.pick(lambda n: "/" not in n), values.pick(lambda n: "/" in n), t)
