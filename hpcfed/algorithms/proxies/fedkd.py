"""FedKD: a large own model and a small common one teach each other; only the small one is sent.

It is sent as products of small factors.

Wu et al., Nature Communications 2022, arXiv:2108.13323. The own model is the paper's mentor,
models.proxy its mentee w. Both descend one loss of their soft predictions s and representations z,
whose MSE has the weight hidden_weight. The smaller L, the more they trust each other.

The rank of singular vectors and values is the smallest whose energy reaches a threshold, which
rises over the rounds from energy_start to energy_end. A client that was not in the round before
receives the whole common model, because it has missed updates. The bytes depend on what is learnt;
`traffic` announces their upper bound.

Objective: L + (KL(s_common || s_own) + KL(s_own || s_common) + MSE(W_h z_common, z_own)) / L; L =
    CE_own + CE_common
Server: D = sum_k p_k U_k S_k V_k^T; w <- w + U S V^T
Round:
1. The server sends the compressed mean update of the common model.
2. Each client trains its own and the common model; they teach each other.
3. It sends the update of the common model as singular vectors and values, U_k S_k V_k^T.
4. The server decompresses the updates and averages them to D.
5. It compresses D to U S V^T, which it adds to its model and sends in the next round.

Deviations: hidden states are the representations [n, d] (the paper aligns layers of Transformers
and their attention). W_h is trained by plain gradient steps with local.lr and starts as the
identity. L is a constant, and at least 1e-8. Teachers are constants. Divergences are means over
examples of sums over classes (the authors' code: means over classes too). A tensor is sent as it is
where factors would be longer. A rank is at least 1 and may be full: in the authors' code a
threshold of 1 erases the update. Their code (preset authors) has no W_h in its loss, and counts the
MSE twice, once for each model, though it depends on both; neither L nor teachers are constants
there.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor

from hpcfed import Client, Federation, Guide, Job, LocalSteps, Mean, Params, Upload
from hpcfed.algorithms.proxies.lowrank import pack, unpack
from hpcfed.algorithms.proxies.pairs import AveragedProxy
from hpcfed.config.conditions import field, other_than
from hpcfed.models.model import Pair
from hpcfed.models.precision import full
from hpcfed.training.engines import gradient
from hpcfed.training.losses import distil, soften

LEAST = 1e-8  # lower bound of the sum of both cross-entropies, by which the other terms are divided
Energy = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class State:
    """The common model, and the compressed message that updates the model before it.

    x: the common model.
    packed: the message that makes x from the model before, for clients that have that model.
    round: the round in which x was made, [], int64; -1 for the first model.
    """

    x: Params
    packed: Params
    round: Tensor


class FedKD(AveragedProxy):
    """With energy_start = energy_end = 1 the common model is exchanged as in FedAvg.

    Only rounding differs.
    """

    guide = Guide(
        data="alike to moderately different",
        sent="the small common model, in factors",
        won="text: up to 94.89 % fewer bytes",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"
    reads_head: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: 1, or its number of training examples."""
    energy_start: Energy = field(0.95, used_if="averaging")
    """Share of the squared singular values that factors keep, before the first round."""
    energy_end: Energy = field(0.98, used_if="averaging")
    """That share in the last round; between them it changes by the same amount each round."""
    exchange: Literal["updates", "weights"] = field("updates", used_if="averaging")
    """Compress the change of the common model, or its weights."""
    hidden: Literal["projected", "plain", "none"] = "projected"
    """Representations agree after a linear map W_h of the common model's, which each client learns;
    as they are; or need not.
    """
    hidden_weight: PositiveFloat = field(1.0, used_if={"hidden": other_than("none")})
    """Weight of the MSE of representations."""

    @model_validator(mode="after")
    def rises(self) -> Self:
        if self.energy_start > self.energy_end:
            raise ValueError(
                f"energy_start = {self.energy_start:g} is above energy_end = {self.energy_end:g}; "
                f"the threshold rises over the rounds"
            )
        return self

    def refuses(self, job: Job) -> dict[str, str]:
        reasons, architectures = super().refuses(job), {*job.models.mix, job.models.proxy}
        if self.hidden == "plain" and "logistic" in architectures and len(architectures) > 1:
            reasons["job"] = (
                "needs representations of one width, but that of logistic is as wide as its "
                "input; set algorithm.hidden = 'projected'"
            )
        if job.privacy.bounds and self.averaging and self.energy_start < 1:
            reasons["job"] = (
                f"needs factors whose ranks follow from the clients' data, but privacy.by = "
                f"{job.privacy.by!r} hides values alone; set algorithm.energy_start = 1 and "
                f"algorithm.energy_end = 1, with which ranks are full"
            )
        return reasons

    @property
    def uses_rounds(self) -> bool:
        return self.averaging and self.energy_start != self.energy_end

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        """Return upper bounds: how short the factors are follows from what is learnt."""
        bytes_ = fed.shapes(self.shared, k).nbytes
        return bytes_, bytes_

    def init(self, fed: Federation) -> State:
        x = fed.initial(self.shared)
        return State(x, x, torch.full((), -1, device=fed.device))

    def energy(self, fed: Federation, t: int) -> float:
        """Return the threshold of round t."""
        share = (t + 1) / fed.job.rounds
        return self.energy_start + (self.energy_end - self.energy_start) * min(share, 1.0)

    def loss(self, client: Client, state: Params, model: Pair, x: Any, y: Tensor) -> Tensor:
        """Return the loss of both models on one batch.

        state: W_h [d_own, d_common] as "projection", if there is one.
        """
        z_own, z_proxy = model.own.body(x), model.proxy.body(x)
        private, proxy = model.own.head(z_own), model.proxy.head(z_proxy)
        supervised = client.task.loss(private, y) + client.task.loss(proxy, y)
        agree = distil(soften(proxy), private) + distil(soften(private), proxy)
        if self.hidden == "projected":
            with full(z_proxy.device):  # its error in bfloat16 would be part of the distance
                mapped = z_proxy @ state["projection"].T
            agree = agree + self.hidden_weight * F.mse_loss(mapped, z_own)
        elif self.hidden == "plain":
            agree = agree + self.hidden_weight * F.mse_loss(z_proxy, z_own)
        return supervised + agree / supervised.detach().clamp(min=LEAST)

    def train_both(self, fed: Federation, client: Client, t: int) -> None:
        """Train both models, and W_h, which is in the client's memory."""
        if self.hidden != "projected":
            self.train(fed, client, Params(), t)
            return
        with LocalSteps(fed, client, t) as steps:
            model: Any = steps.model
            widths = model.own.head.in_features, model.proxy.head.in_features
            identity = torch.eye(*widths, device=fed.device)
            w = client.memory.get("projection", identity).clone().requires_grad_()
            for x, y in steps:
                value = steps.value(partial(self.loss, client, Params(projection=w)), x, y)
                *slopes, slope = gradient(value, [*steps.leaves, w])
                steps.step(value, slopes)
                with torch.no_grad():
                    w -= steps.lr * slope
        client.memory["projection"] = w.detach()

    def model(self, state: State) -> Params:
        return state.x

    def download(self, fed: Federation, client: Client, state: State) -> Params:
        """Return the common model, as the client has it after its download.

        A client of the last round has the model before that, and receives the change alone.
        """
        if self.exchange == "weights":
            return unpack(fed.down(client, state.packed), state.x)
        if client.memory.get("round") != int(state.round):
            return fed.down(client, state.x)
        change = unpack(fed.down(client, state.packed), state.x)
        return Params(client.memory["common"]) + change

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        common = self.download(fed, client, state)
        self.receive(client, common)
        self.train_both(fed, client, t)
        values = client.params(self.shared)
        if self.exchange == "updates":
            client.memory |= {"round": t, "common": common}
            values = values - common
        return Upload(pack(values, self.energy(fed, t)))

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Any]]) -> Params:
        """Return the mean of what the clients sent, which the server decompresses."""
        parts = (
            (k, Mean.of(unpack(packed, state.x), self.weight(fed.clients[k])))
            for k, packed in uploads
        )
        return fed.mean(parts, keep=state.x)

    def server(self, fed: Federation, state: State, mean: Params, cohort: list[int]) -> State:
        packed = fed.on_root(lambda: pack(mean, self.energy(fed, fed.t)))
        change = unpack(packed, state.x)
        x = change if self.exchange == "weights" else state.x + change
        return State(x, packed, torch.full_like(state.round, fed.t))
