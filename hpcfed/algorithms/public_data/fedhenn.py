"""FedHeNN: clients with different models learn representations with similar kernels.

Makhija et al., ICML 2022, arXiv:2202.07757, algorithms 1 and 2, eqs. 5 and 6. The kernels are those
of the representation alignment data (RAD): unlabelled examples that all clients see, drawn anew in
each round.

Homogeneous: the final model is the mean of all clients' last models; a client that never took part
counts with the initial one. Heterogeneous: no models are averaged.

Objective: F_k(w_k) + eta_t (1 - CKA(G_k, G))
Server: G = sum_(all k) G_k / K; w <- sum_k p_k w_k
Round:
1. The server draws the representation alignment data (RAD) of this round.
2. Heterogeneous: it sends G, the mean over all K clients of the kernels G_k of their last models.
3. Homogeneous: it sends its model w, and G is the kernel of this model.
4. Each client of the cohort trains with the distance of its kernel from G.
5. It sends its model; in the homogeneous setting the server averages these.

Deviations: The paper leaves open how eta grows and which steps have the term. As in the authors'
code, eta grows by the root of the round, and every step has the term; their first round has
eta = 0, the next eta0 sqrt(1), and so on, and here the rounds have eta0 sqrt(1), eta0 sqrt(2), ....
The distance is 1 - CKA on centred columns. The RAD passes models in eval mode; in the authors' code
it passes them in train mode and augmented. Their mean is over the kernels that the models of the
previous round's cohort have on this round's RAD (mean_over = "previous"), their first round has no
mean, and their last round trains all clients.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Job, Mean, Params, RoundBased, Shard, Upload, sgd
from hpcfed.algorithms import received
from hpcfed.algorithms.public_data.alignment import Distance, add_alignment
from hpcfed.algorithms.public_data.kernels import (
    Kernel,
    mean_of_kernels,
    mean_of_uploads,
    send_kernel,
)
from hpcfed.config.conditions import Unused, above, field, other_than, unless
from hpcfed.training import similarity
from hpcfed.training.infer import outputs, represent
from hpcfed.training.local import Loss

# growth of the weight of the distance; t: rounds from 1
GROWTH: dict[str, Callable[[int], float]] = {
    "constant": lambda t: 1.0,
    "sqrt": math.sqrt,
    "linear": float,
}
PREVIOUS = "previous"  # in the state: whether each client was in the last round's cohort, [K]


class FedHeNN(RoundBased):
    """With eta0 = 0 the homogeneous setting is FedAvg, the heterogeneous one local training.

    Both are equal bit for bit.
    """

    guide = Guide(
        data="few classes per client",
        sent="weights or representations; kernels of public examples",
        won="CIFAR-10, CIFAR-100 and text, above FedRep and FedAvg",
    )

    reads_head: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("public",)
    keeps_weights: ClassVar[bool | None] = True
    unused: ClassVar[Unused] = {
        "weighting": unless({"setting": "homogeneous"}, "models are not averaged"),
    }

    setting: Literal["heterogeneous", "homogeneous"] = "heterogeneous"
    """Any models and a mean of kernels, or one architecture and a mean of models."""
    eta0: NonNegativeFloat = 0.001
    """Weight of the distance in the first round; 0 switches it off."""
    schedule: Literal["sqrt", "constant", "linear"] = field("sqrt", used_if="eta0")
    """How that weight grows with the round: by its root, not at all, or in proportion."""
    rad_size: PositiveInt = 5000
    """Public examples drawn each round; all if there are fewer."""
    align_every: PositiveInt = field(1, used_if="eta0")
    """Steps from one local step with the term to the next; 1: all have it."""
    distance: Literal["cka", "procrustes"] = field("cka", used_if="eta0")
    """Distance of representations; Procrustes in the homogeneous setting only."""
    kernel: Literal["linear", "rbf"] = field(
        "linear", used_if={"distance": other_than("procrustes")}
    )
    """Kernel of the representations, for CKA."""
    bandwidth: PositiveFloat = field(1.0, used_if={"kernel": other_than("linear")})
    """RBF kernel: its width as a multiple of the median distance of two representations."""
    mean_over: Literal["all", "cohort", "previous"] = field(
        "all", used_if={"setting": "heterogeneous", "eta0": above(0)}
    )
    """Heterogeneous: whose kernels are averaged: all clients', the cohort's, or (authors' code)
    those of the previous round's cohort, none in the first round.
    """
    kernel_norm: Literal["none", "frobenius"] = field(
        "none", used_if={"setting": "heterogeneous", "eta0": above(0)}
    )
    """Heterogeneous: average kernels as they are, or each at length 1, so that none outweighs the
    others.
    """
    upload: Literal["model", "representations", "kernel"] = field(
        "model", used_if={"setting": "heterogeneous"}
    )
    """Heterogeneous: clients send their models after training; or, before training, the
    representations or the kernels of the RAD, from all clients whose kernels are averaged.
    """

    @property
    def accepts(self) -> str:
        return "one architecture" if self.setting == "homogeneous" else "any models"

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if self.distance == "procrustes" and self.setting == "heterogeneous":
            reasons["job"] = (
                "needs one width for Procrustes, but is heterogeneous; set "
                "algorithm.distance = 'cka'"
            )
        return reasons

    def shared(self, name: str) -> bool:
        return self.setting == "homogeneous"

    @property
    def looks_back(self) -> bool:
        """Whether the mean is taken over the cohort of the round before."""
        return self.setting == "heterogeneous" and self.mean_over == "previous"

    def init(self, fed: Federation) -> Params:
        if self.looks_back:  # the state says who took part in the round before, [K]
            return Params({PREVIOUS: torch.zeros(fed.K, dtype=torch.bool, device=fed.device)})
        return super().init(fed)

    def offer(self, fed: Federation, client: Client, state: Params) -> Params:
        return state.pick(lambda name: name != PREVIOUS)

    def members(self, fed: Federation, state: Params, cohort: list[int]) -> list[int]:
        """Return the clients whose kernels are averaged."""
        if self.looks_back:
            return state[PREVIOUS].nonzero()[:, 0].tolist()
        return list(range(fed.K)) if self.mean_over == "all" else cohort

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        rad = fed.public.pick(fed.draw_public(t, self.rad_size))
        mean_kernel = mean_of_clients(fed, rad, self.members(fed, state, cohort), self)
        uploads = fed.stream(
            cohort, lambda client: self.train_member(fed, client, state, t, rad, mean_kernel)
        )
        if self.setting == "homogeneous":
            means = list(uploads)
            received.remember(fed, ((k, {"model": mean.terms[0].value}) for k, mean in means))
            return fed.mean(means, keep=state)
        received.remember(fed, ((k, {"model": model}) for k, model in uploads))
        if not self.looks_back:
            return state
        took_part = torch.zeros_like(state[PREVIOUS])
        took_part[cohort] = True
        return Params({PREVIOUS: took_part})

    def train_member(
        self,
        fed: Federation,
        client: Client,
        state: Params,
        t: int,
        rad: Shard,
        mean_kernel: Tensor | None,
    ) -> Upload | None:
        """Train a client of the cohort and return the model that it sends, if it sends one."""
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        loss: Loss = partial(self.loss, client, download)
        if self.eta0 and (mean_kernel is not None or self.setting == "homogeneous"):
            distance = distance_to(fed, client, rad, mean_kernel, self)
            weight = self.eta0 * GROWTH[self.schedule](t + 1)
            loss = add_alignment(fed, client, loss, rad, distance, weight, self.align_every)
        sgd(fed, client, t, loss)
        if self.setting == "homogeneous":
            return Upload(Mean.of(client.params(), self.weight(client)), relative_to=download)
        return Upload(client.params()) if self.eta0 and self.upload == "model" else None

    def finish(self, fed: Federation, state: Params, t: int) -> Params | None:
        if self.setting == "heterogeneous":
            return None
        initial = fed.initial()
        last = (
            (client.id, Mean.of(received.model(client) or initial, self.weight(client)))
            for client in fed.mine(range(fed.K))
        )
        return fed.mean(last, keep=state)


def distance_to(
    fed: Federation, client: Client, rad: Shard, mean: Tensor | None, method: FedHeNN
) -> Distance:
    """Return the distance of representations to the round's target, as a function.

    It is 1 - CKA to the mean kernel, which the client receives; without one, to the representations
    of the model that the client received.
    mean: [L, L], of `similarity.normalise_kernel`; None: there is none.
    """
    if mean is not None:
        return cka_to(fed.down(client, mean), method)
    z = represent(fed, client, rad)
    if method.distance == "procrustes":
        return partial(similarity.procrustes, b=z)
    if method.kernel == "linear":
        return lambda a: 1 - similarity.linear_cka(a, z)
    return cka_to(similarity.normalise_kernel(similarity.rbf_kernel(z, method.bandwidth)), method)


def cka_to(target: Tensor, method: FedHeNN) -> Distance:
    """Return the distance 1 - CKA to a kernel that `similarity.normalise_kernel` made."""
    if method.kernel == "linear":
        return lambda z: 1 - similarity.cka_to_kernel(z, target)
    return lambda z: 1 - similarity.cka(similarity.rbf_kernel(z, method.bandwidth), target)


def mean_of_clients(
    fed: Federation, rad: Shard, members: list[int], method: FedHeNN
) -> Tensor | None:
    """Return the mean kernel of the round, normalised as a target, [L, L]; collective.

    Makhija et al., ICML 2022, algorithm 2. Returns None in the homogeneous setting, with eta0 = 0,
    and if no kernel is averaged.
    members: the clients whose kernels are averaged, with the models that they have at the start of
    the round, whether or not they are in the cohort. They send representations or kernels, or the
    server computes them from the models that it has received.
    """
    if method.setting != "heterogeneous" or not method.eta0 or not members:
        return None
    if method.upload == "model":
        kernels = {
            client.id: Kernel.of(represent_received(fed, client, rad), method)
            for client in fed.mine(members)
        }
        mean = mean_of_kernels(fed, kernels, len(rad))
    else:
        uploads = fed.stream(members, lambda client: send_kernel(fed, client, rad, method))
        mean = mean_of_uploads(fed, uploads, len(rad), method)
    return similarity.normalise_kernel(mean)


def represent_received(fed: Federation, client: Client, rad: Shard) -> Tensor:
    """Return the representations [L, d] by the model that the server received last of a client.

    Of a client that has sent none it is the client's initial model.
    """
    module = fed.module(client.architecture)
    module.assign(received.model(client) or fed.initial(k=client.id))
    return outputs(fed, module.model.eval().body, rad)
