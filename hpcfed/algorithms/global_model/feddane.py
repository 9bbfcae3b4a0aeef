"""FedDANE: clients send gradients first, then train with a correction towards their mean.

Li et al., Asilomar 2019, arXiv:2001.01920.

Objective: F_k(w) + <g - g_k, w> + mu / 2 ||w - w_t||^2
Server: g <- sum_k p_k g_k; w <- sum_k p_k w_k
Round:
1. The server sends its model w_t to a first set of clients, which send their gradients g_k there.
2. It sends the mean gradient g to a second set, and w_t to those of it that do not have it yet.
3. Each client of this set trains from w_t with the correction g - g_k and the proximal term.
4. It sends its model.
5. The server takes the weighted mean of the models.

Deviations: the paper draws clients anew for the second half of a round; those of the first half are
drawn alike, whatever selection.by. The authors' code (preset authors) restarts its generator, so
that both sets are the same clients, who then need the model only once (sets = "same"). A client
that is only in the second set computes its gradient there. If no gradient arrives the round changes
nothing. Clients are weighted by examples, as in that code, and drawn without replacement. With
batch normalisation the gradient is computed on batches of local.batch examples, each with its own
statistics, which are not kept.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Model, Params, RoundBased, Upload, rng
from hpcfed.config.conditions import below, field
from hpcfed.training.local import gradient
from hpcfed.training.losses import differences, proximal


@dataclass(frozen=True)
class Task:
    """Local problem of a client.

    w: the model from which it starts.
    correction: the mean gradient at w minus the client's own, of parameters.
    """

    w: Params
    correction: Params


class FedDANE(RoundBased):
    """FedProx with a gradient correction.

    With a single client the correction is 0, and this is FedProx.
    """

    guide = Guide(
        data="alike",
        sent="all weights, and gradients: twice",
        won="nowhere: its paper reports results below FedAvg and FedProx",
    )

    edges: ClassVar[str] = "sums"

    mu: NonNegativeFloat = 0.0
    """Weight of the proximal term."""
    sets: Literal["independent", "same"] = field("independent", used_if={"participation": below(1)})
    """Clients that train are drawn anew, or are those that sent gradients."""

    def cohort(self, fed: Federation, t: int) -> list[int]:
        gradient_clients, update_clients = self.two_sets(fed, t)
        return sorted({*gradient_clients, *update_clients})

    def two_sets(self, fed: Federation, t: int) -> tuple[list[int], list[int]]:
        """Return the clients that send a gradient in round t, and those that train."""
        second = fed.sample(t)
        if self.sets == "same":
            return second, second
        g = rng.stream(fed.seed, "gradients", t)
        return sorted(g.choice(fed.K, fed.cohort_size, replace=False).tolist()), second

    def loss(self, client: Client, state: Task, model: Model, x: Any, y: Tensor) -> Tensor:
        value = super().loss(client, state, model, x, y)
        named = dict(model.named_parameters())
        change = differences(model, state.w)
        linear = [
            torch.vdot(state.correction[n].flatten(), d.flatten())
            for n, d in zip(named, change, strict=True)
        ]
        value = value + torch.stack(linear).sum()
        return value + proximal(model, anchor=state.w, mu=self.mu) if self.mu else value

    def slope(
        self, fed: Federation, client: Client, state: Params, t: int, counted: bool = True
    ) -> Params:
        """Return the client's mean gradient at its model, which does not change.

        counted: whether it is work of the client.
        """
        plain = partial(RoundBased.loss, self, client, state)
        with client.borrowed():
            gradient(fed, client, t, plain, phase="gradient", counted=counted)
        return client.gradient()

    def send_gradient(
        self,
        fed: Federation,
        client: Client,
        state: Params,
        slopes: dict[int, Params],
        second: list[int],
        t: int,
    ) -> Upload:
        """Do the first half of a client's round: download, gradient, upload.

        slopes: the client's gradient is added, for the second half.
        second: the clients that do the second half, for which they keep the model.
        """
        model = fed.down(client, state)
        if client.id in second:
            client.memory["model"] = model
        self.receive(client, model)
        slopes[client.id] = self.slope(fed, client, model, t)
        return Upload(Mean.of(slopes[client.id], self.weight(client)))

    def correct(
        self,
        fed: Federation,
        client: Client,
        state: Params,
        mean: Params,
        slope: Params | None,
        again: bool,
        t: int,
    ) -> Upload:
        """Do the second half of a client's round: download the mean gradient, train, upload.

        slope: its gradient, if it is known from the first half in this process.
        again: whether the client has done the first half.
        """
        model = Params(client.memory.pop("model")) if again else fed.down(client, state)
        self.receive(client, model)
        slope = slope or self.slope(fed, client, model, t, counted=not again)
        self.train(fed, client, Task(model, fed.down(client, mean) - slope), t)
        return Upload(Mean.of(client.params(), self.weight(client)), relative_to=model)

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        gradient_clients, update_clients = (
            [k for k in ks if k in cohort] for ks in self.two_sets(fed, t)
        )
        if not gradient_clients:  # no mean gradient, so no correction
            return state
        slopes: dict[int, Params] = {}
        sent = fed.stream(
            gradient_clients,
            partial(self.send_gradient, fed),
            arguments=(state, slopes, update_clients, t),
        )
        mean = fed.mean(sent, keep=state.pick(fed.trainable) * 0)

        def correct(client: Client) -> Upload:
            slope, again = slopes.get(client.id), client.id in gradient_clients
            return self.correct(fed, client, state, mean, slope, again, t)

        return fed.mean(fed.stream(update_clients, correct), keep=state)
