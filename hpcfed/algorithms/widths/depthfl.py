"""DepthFL: clients have models of several depths, whose exits teach each other.

A client of depth l has the first blocks of one model and an exit, a classifier, behind several of
them. All exits learn the labels and each other's predictions, so that deep exits, which few clients
have, help the shallow ones, which all have. A client predicts by the mean of its exits' logits.

Kim et al. (DepthFL: Depthwise Federated Learning for Heterogeneous Clients), ICLR 2023,
openreview.net/forum?id=pf8RIZTMU58; with the regulariser of FedDyn, arXiv:2111.04263. z_i are the
logits of exit i of l, and q_i is their softmax, without gradient. K_w is the number of clients of
the round that have a tensor w, and g_k is client k's FedDyn state.

Objective: sum_i (CE(z_i, y) + lam r_t / (l - 1) sum_j KL(q_j || softmax(z_i))) - <g_k, w>
    + alpha / 2 ||w - w_t||^2; r_t = e^(-5 u_t^2); u_t = max(0, 1 - t / T)
Server: h <- h - alpha K_w / K (mean_k w_k - w); w <- mean_k w_k - h / alpha
Round:
1. The server sends each client the first blocks of one model, as many as it can train, and their
   exits.
2. The client trains all exits on the labels, and each one on the predictions of all others.
3. It updates its g_k by -alpha (w_k - w_t), keeps it, and sends its model.
4. For each tensor the server takes the mean over those clients that have it, and corrects it by h.

Deviations: the text of the paper was not at hand; formulas are those of the code of one of its
authors in adap/flower. An exit is what follows the blocks in the client's model, and starts as a
copy of it; the paper's has attention and separable convolutions. The code adds 1e-7 to q_j, so that
the divergence of equal predictions is not 0. A block that nobody in the round has stays as it is.
Statistics of batch normalisation are averaged and have neither g_k nor h.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Upload, sgd
from hpcfed.algorithms.global_model.shares import share_of
from hpcfed.algorithms.widths.tiers import accuracies, tier_shares, tiers
from hpcfed.config.conditions import field
from hpcfed.models.depths import different
from hpcfed.models.variants import name_variant
from hpcfed.training.losses import distil, inner_product, proximal, soften


@dataclass(frozen=True)
class State:
    """The server's model and its correction.

    x: the tensors of the deepest model, exits by their block, "exits.2. ...".
    h: the correction of FedDyn, for parameters alone; empty without it.
    """

    x: Params
    h: Params


class DepthFL(RoundBased):
    """With alpha = 0 and one exit DepthFL is FedAvg, and with one exit FedDyn, bit for bit."""

    guide = Guide(
        data="alike to different labels",
        sent="the first layers of one model, and their classifiers",
        won="above HeteroFL and InclusiveFL with devices of four depths",
    )

    accepts: ClassVar[str] = "depths"
    per: ClassVar[str] = "tensor"
    trains_parts: ClassVar[bool] = False

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: 1, or its number of training examples."""
    every: PositiveInt = 1
    """Blocks from one exit to the next; a client's last exit is behind its last block. Each depth
    of models.mix must be a multiple of it, except for the deepest.
    """
    lam: NonNegativeFloat = 1.0
    """Largest weight of the exits' learning from each other; 0: none."""
    ramp: NonNegativeInt = field(300, used_if="lam")
    """Rounds, T, in which this weight rises from nearly 0; 0: it is lam from the start."""
    alpha: NonNegativeFloat = 0.1
    """Weight of FedDyn's proximal term, and step of its linear one; 0: FedAvg's local objective and
    mean.
    """

    @property
    def variants(self) -> Any:
        return (name_variant("exits", self.every),)

    @property
    def needs_classes(self) -> str:
        return "its exits learn class probabilities from each other" if self.lam else ""

    def init(self, fed: Federation) -> State:
        deepest = tiers(fed).tiers[-1]
        names = common_names(fed, deepest)
        x = rename(fed.initial(architecture=deepest), names)
        for kind in tiers(fed).tiers:
            for name in common_names(fed, kind).values():
                if name not in x:
                    why = (
                        f"with exits behind each algorithm.every = {self.every} blocks, only one "
                        f"of them has {name}"
                    )
                    raise different(deepest, kind, why)
        trained = {common for name, common in names.items() if fed.trainable(name)}
        return State(x, x.pick(trained.__contains__) * 0 if self.alpha else Params())

    def model(self, state: State) -> Params:
        return state.x

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        names = common_names(fed, client.architecture)
        return Params({name: state.x[common] for name, common in names.items()})

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Tensor) -> Tensor:
        start, *others = (client.task.loss(z, y) for z in model.logits(x))
        return sum(others, start)

    def objective(
        self,
        client: Client,
        received: Params,
        dual: Params,
        strength: float,
        model: Any,
        x: Any,
        y: Tensor,
    ) -> Tensor:
        """Return the local objective on one batch.

        dual: g_k.  strength: lam r_t.
        """
        logits = model.logits(x)
        cached = SimpleNamespace(logits=lambda x: logits)  # one forward pass for both terms
        value = self.loss(client, received, cached, x, y)
        if strength:
            value = value + strength * divergence(logits)
        if not self.alpha:
            return value
        return value + proximal(model, received, self.alpha) - inner_product(model, dual)

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        names = common_names(fed, client.architecture)
        zero = {name: state.h[at] * 0 for name, at in names.items() if at in state.h}
        dual = Params(client.memory.get("dual", zero))
        strength = self.lam * rise(t, self.ramp)
        sgd(fed, client, t, partial(self.objective, client, download, dual, strength))
        sent = client.params()
        if self.alpha:
            client.memory["dual"] = dual - self.alpha * (sent.pick(fed.trainable) - download)
        mean = Mean.of(rename(sent, names), self.weight(client))
        return Upload(mean, relative_to=rename(download, names))

    def server(self, fed: Federation, state: State, mean: Params, cohort: list[int]) -> State:
        if not self.alpha:
            return State(mean, state.h)
        share = share_of(self, fed, cohort)  # of all clients
        x, h = Params(mean), Params(state.h)
        having = {
            kind: (set(common_names(fed, kind).values()), part)
            for kind, part in tier_shares(self, fed, cohort).items()
        }
        for name in h:
            part = sum(part for names, part in having.values() if name in names)
            if part:
                h[name] = h[name] - (self.alpha * (part * share)) * (mean[name] - state.x[name])
                x[name] = mean[name] - h[name] / self.alpha
        return State(x, h)

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        return super().columns(fed, state) | accuracies(self, fed, state)


def common_names(fed: Federation, architecture: str) -> dict[str, str]:
    """Return the name at the server of each tensor of an architecture, by its name there.

    What follows the blocks is the exit of the last block, which deeper models have behind an inner
    one.
    """
    kin = tiers(fed)
    depth = kin.depths[architecture]
    return {
        name: f"exits.{depth}.{name}" if name in kin.above else name
        for name in fed.shapes(architecture=architecture)
    }


def rename(values: Params, names: Mapping[str, str]) -> Params:
    """Return tensors under other names."""
    return Params({names[name]: value for name, value in values.items()})


def rise(t: int, ramp: int) -> float:
    """Return r_t, the share of the weight of mutual learning that round t has, from 0 on."""
    return math.exp(-5 * (1 - min(1.0, t / ramp)) ** 2) if ramp else 1.0


def divergence(logits: list[Tensor]) -> Tensor | float:
    """Return the sum over exits of their mean divergence from the predictions of all others.

    logits: of each exit, [n, C].
    """
    if len(logits) == 1:
        return 0.0
    soft = [soften(z) for z in logits]
    pairs = [distil(q, z) for i, z in enumerate(logits) for j, q in enumerate(soft) if i != j]
    return sum(pairs[1:], pairs[0]) / (len(logits) - 1)
