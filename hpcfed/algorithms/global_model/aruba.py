"""ARUBA: FedAvg that learns a local learning rate for each weight.

Khodak et al. (Adaptive Gradient-Based Meta-Learning Methods), NeurIPS 2019, arXiv:1906.02717,
section 4 and algorithm 2, compared with the authors' code (mkhodak/ARUBA). The rates are learned
from how far clients move and how large their gradients are. t_k counts the clients that have
reported, over all rounds, from 1. b and G begin with eps^2 and zeta^2. eps is zeta local.lr, so
that the first rates are local.lr, as in that code. With one rate for all weights (scope = "all") b
and G are the sums of those of all weights. ARUBA++ (`final_epochs`): after the last round clients
personalise phi with eta updated after every step, G <- G + c g^2.

Objective: F_k(w)
Server: b <- b + sum_k ((w_k - phi)^2 / 2 + eps^2 / (t_k + 1)^p); G <- G + sum_k (G_k + zeta^2 /
    (t_k + 1)^p); eta <- sqrt(b / G); phi <- sum_k p_k w_k
Round:
1. The server sends its model phi and eta, a learning rate for each weight.
2. Each client steps by w <- w - eta g and adds up the squares of its gradients g to G_k.
3. It sends its model and G_k.
4. The server adds half the squared moves to b, the G_k to G, and to both terms that decay.
5. It sets the rates to the root of b / G, and phi to the weighted mean.

Deviations: float buffers of batch normalisation are averaged plainly.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Job, LocalSteps, Mean, Params, RoundBased, Upload
from hpcfed.config.conditions import Unused, field, unless

ALL = "all"  # name of the single rate of all weights
SQUARES = "squares."


@dataclass(frozen=True)
class State:
    """State of the server: its model and the sums from which rates follow.

    x: the model, phi.
    b, g: sums of squared moves and gradients, by parameter, or one number of the name `all`.
    clients: number of clients that have reported so far, a scalar.
    """

    x: Params
    b: Params
    g: Params
    clients: Tensor


PLAIN = "clients take plain steps with the learned rates"


class ARUBA(RoundBased):
    """FedAvg with learned local learning rates; learn = false is FedAvg, bit for bit."""

    guide = Guide(
        data="users whose models are to be personal",
        sent="all weights, and a rate for each",
        won="Shakespeare: adaptation without tuning its rate",
    )

    edges: ClassVar[str] = "sums"

    learn: bool = True
    """Learn the rates; otherwise they stay at local.lr, and clients send only models."""
    scope: Literal["weight", "all"] = field("weight", used_if="learn")
    """One rate per weight, or one for all weights (isotropic)."""
    zeta: PositiveFloat = field(1.0, used_if="learn")
    """Initial size of the sums: the larger, the more slowly rates change from local.lr."""
    p: NonNegativeFloat = field(1.0, used_if="learn")
    """Decay of the constant that is added to the sums for each client."""
    final_epochs: NonNegativeInt = field(0, used_if={"learn": True, "adapt.how": "none"})
    """ARUBA++: epochs in which all clients personalise the model after the last round."""
    c: NonNegativeFloat = field(0.0, used_if="final_epochs")
    """ARUBA++: weight of a client's own squared gradients; 0: learned rates stay as they are."""

    local_defaults: ClassVar[dict[str, Any]] = {"optimiser": "sgd", "lr": 0.1}
    unused: ClassVar[Unused] = {
        "local.momentum": unless({"learn": False}, PLAIN),
        "local.weight_decay": unless({"learn": False}, PLAIN),
        "local.schedule": unless({"learn": False}, PLAIN),
    }

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if self.learn and job.local.optimiser != "sgd":
            reasons["job"] = (
                "needs SGD, because it learns the rates of its steps; set local.optimiser = 'sgd'"
            )
        return reasons

    def init(self, fed: Federation) -> State:
        x = fed.initial()
        one = x.pick(fed.trainable).map(torch.ones_like)
        if self.scope == "all":
            one = self.sums(one)
        eps = self.zeta * fed.job.local.lr
        count = torch.zeros((), dtype=torch.int64, device=fed.device)
        return State(x, eps**2 * one, self.zeta**2 * one, count)

    def model(self, state: State) -> Params:
        return state.x

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload | None:
        if not self.learn:
            return super().local(fed, client, state, t)
        download, rates = fed.down(client, state.x), fed.down(client, rates_of(state.b, state.g))
        self.receive(client, download)
        squares = self.descend(fed, client, download, t, lambda _: rates)
        model = Mean.of(client.params(), self.weight(client))
        return Upload(model=model, squares=Mean.of(squares), relative_to={"model": download})

    def descend(
        self, fed: Federation, client: Client, x: Params, t: int, rates: Any, **how: Any
    ) -> Params:
        """Train locally and return the sums of squared gradients.

        rates: function that returns the rates of a step from the sums over the steps before it.
        """
        skeleton, layout = client.skeleton, client.skeleton.layout
        total = torch.zeros_like(skeleton.grad)
        step, loss = torch.zeros_like(total), partial(self.loss, client, x)
        with LocalSteps(fed, client, t, **how) as steps:
            for inputs, y in steps:
                value = steps.value(loss, inputs, y)
                self.spread(rates(self.sums(layout.views(total))), layout.views(step))
                steps.backward(value)
                total += skeleton.grad.square()
                skeleton.flat[: len(step)] -= step * skeleton.grad
                steps.done(value)
        return self.sums(layout.views(total)).clone()

    def sums(self, total: Any) -> Params:
        """Return the squares by weight, or their sum if all weights share one rate."""
        if self.scope == "weight":
            return Params(total)
        return Params({ALL: torch.stack([v.sum() for v in total.values()]).sum()})

    def spread(self, rates: Params, step: Any) -> None:
        """Write the rates into `step`, which has one value for each weight."""
        for name, values in step.items():
            values.copy_(rates[ALL] if self.scope == "all" else rates[name])

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Any]]) -> Any:
        if not self.learn:
            return super().aggregate(fed, state, uploads)
        mean = fed.mean(uploads, keep={"model": state.x, "squares": state.g * 0})
        parts = ((k, Mean.of(self.moved(fed, state, sent["model"]))) for k, sent in uploads)
        return mean | {"moves": fed.mean(parts, keep=state.b * 0)}

    def moved(self, fed: Federation, state: State, sent: Mean) -> Params:
        """Return the squares of a client's change of the model, by weight or summed."""
        change = sent.terms[0].value.pick(fed.trainable) - state.x
        return self.sums(change.map(torch.square))

    def server(self, fed: Federation, state: State, mean: Any, cohort: list[int]) -> State:
        if not self.learn:
            return State(mean, state.b, state.g, state.clients)
        x, moves, squares = mean["model"], mean["moves"], mean["squares"]
        layout, lr = fed.store.layout(fed.architectures[0]), fed.job.local.lr
        weights = layout.n_params if self.scope == "all" else 1
        clients = round(fed.share(cohort) * fed.K)
        return self.follow(state, x, moves, squares, clients, lr, weights)

    def follow(
        self,
        state: State,
        x: Params,
        moves: Params,
        squares: Params,
        clients: int,
        lr: float,
        weights: int = 1,
    ) -> State:
        """Return the new state from the mean squared moves and mean sums of squared gradients.

        moves, squares: means over the clients.  clients: their number.
        lr: initial learning rate.
        weights: number of weights that share a rate.
        """
        earlier = int(state.clients)
        prior = sum((earlier + i + 1.0) ** -self.p for i in range(1, clients + 1))
        zeta = self.zeta**2 * prior * weights
        eps = zeta * lr**2
        b = (state.b + 0.5 * clients * moves).map(lambda v: v + eps)
        g = (state.g + clients * squares).map(lambda v: v + zeta)
        return State(x, b, g, state.clients + clients)

    def finish(self, fed: Federation, state: State, t: int) -> State | None:
        if not self.final_epochs:
            return None
        how = {"epochs": self.final_epochs, "phase": "final"}
        for client in fed.mine(range(fed.K)):
            self.receive(client, state.x)
            rates = lambda total: rates_of(state.b, state.g + self.c * total)  # noqa: E731
            self.descend(fed, client, state.x, t, rates, **how)
        return state


def rates_of(b: Params, g: Params) -> Params:
    """Return the learning rates, sqrt(b / G)."""
    return Params({name: (b[name] / g[name]).sqrt() for name in b})
