"""FedALA: each client starts from its own mixture of its model and the global one, value by value.

Zhang et al. (FedALA: Adaptive Local Aggregation for Personalized Federated Learning), AAAI 2023,
arXiv:2212.01197, eqs. 3 to 5 and algorithm 1. * is the product of values. The weights W of the
last layers are learned, each in [0, 1]; those of the layers below are 1.

Objective: F_k(v + (w - v) * W); F_k(v)
Server: w <- sum_k p_k v_k
Round:
1. The server sends the global model w to the cohort.
2. Each client descends its weights, W <- clip(W - eta grad * (w - v), 0, 1), on some of its
   examples, with grad the gradient of its loss at the mixture of w and its last model v.
3. It trains on from the mixture, v <- v + (w - v) * W.
4. It sends v and keeps W.
5. The server takes the weighted mean.

The first time a client goes over these examples until its loss settles, later once. Nothing is
learned while w is the client's own model, as in the first round.

Deviations: the examples for W are drawn at random, where the authors' code (TsingZ0/FedALA) takes
neighbouring ones, and the first learning has a bound. Layers have both weight and bias; that code
counts tensors. Statistics of batch normalisation are the global ones; there they are the client's.
"""

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from hpcfed import (
    Client,
    Federation,
    Guide,
    LocalSteps,
    Mean,
    Params,
    RoundBased,
    Share,
    Upload,
    rng,
)
from hpcfed.config.conditions import above, field
from hpcfed.training import examples

WINDOW = 10  # passes whose losses have settled if they hardly differ


class FedALA(RoundBased):
    """With eta = 0 all weights stay 1, and FedALA is FedAvg, bit for bit."""

    guide = Guide(
        data="different labels",
        sent="all weights",
        won="images and texts: above FedAvg and ten personal methods",
    )

    keeps_weights: ClassVar[bool | None] = True

    eta: NonNegativeFloat = 1.0
    """Learning rate of the weights."""
    layers: PositiveInt = field(1, used_if="eta")
    """Number of last layers whose weights are learned (p of the paper)."""
    share: Share = field(0.8, used_if="eta")
    """Share of a client's training examples on which it learns weights (s of the paper)."""
    first_epochs: PositiveInt = field(100, used_if="eta")
    """Most passes over these examples in the first learning."""
    threshold: PositiveFloat = field(0.1, used_if={"eta": above(0), "first_epochs": above(WINDOW)})
    """The first learning ends if the losses of the last 10 passes deviate less than this."""

    def init(self, fed: Federation) -> Params:
        fed.start_alike()
        return super().init(fed)

    def receive(self, client: Client, state: Params) -> None:
        weights = Params(client.recall("weights") or {})
        client.load({**state, **mix(client.params(weights.__contains__), state, weights)})

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        if self.eta:
            self.learn_weights(fed, client, download, t)
        self.receive(client, download)
        self.train(fed, client, download, t)
        sent = client.params(self.shared)
        return Upload(Mean.of(sent, self.weight(client)), relative_to=download)

    def learn_weights(self, fed: Federation, client: Client, w: Params, t: int) -> None:
        """Learn the weights, which are in the client's memory; its model stays as it is."""
        if examples.protects(fed, client, client.train):
            examples.refuse(fed, "its clients learn until their loss settles, which no noise hides")
        v = client.params(last_layers(fed.shapes(fed.trainable), self.layers).__contains__)
        if all(torch.equal(v[name], w[name]) for name in v):
            return
        change, loss = w.pick(v.__contains__) - v, partial(self.loss, client, w)
        learned = "weights" in client.memory
        weights = Params(client.memory["weights"] if learned else v.map(torch.ones_like))
        chosen = rng.stream(fed.seed, "ala", t, client.id).permutation(client.n)
        data = client.train.pick(np.sort(chosen[: max(1, int(self.share * client.n))]))
        losses: list[float] = []
        with client.borrowed():
            client.load({**w, **mix(v, w, weights)})
            while not losses or not (learned or self.has_settled(losses)):
                phase = f"ala {len(losses)}"
                with LocalSteps(
                    fed, client, t, 1, 1, data=data, only=v.__contains__, phase=phase, counted=False
                ) as steps:
                    for x, y in steps:
                        value, slopes = steps.gradient(loss, x, y)
                        slope = Params(zip(steps.optimiser.names, slopes, strict=True))
                        weights = descend(weights, slope, change, self.eta)
                        client.load(mix(v, w, weights))
                        steps.done(value)
                losses.append(float(steps.losses[-1]))
        client.memory["weights"] = weights

    def has_settled(self, losses: list[float]) -> bool:
        """Return whether the first learning ends after passes with these losses."""
        settled = len(losses) > WINDOW and np.std(losses[-WINDOW:]) < self.threshold
        return bool(settled) or len(losses) == self.first_epochs


def last_layers(names: Iterable[str], number: int) -> set[str]:
    """Return those of the names of parameters that belong to the last layers of a model."""
    layers = [*dict.fromkeys(name.rpartition(".")[0] for name in names)][-number:]
    return {name for name in names if name.rpartition(".")[0] in layers}


def mix(v: Params, w: Params, weights: Params) -> Params:
    """Return v + (w - v) * W, which is exactly v where W is 0, and w where it is 1."""
    return Params({name: torch.lerp(v[name], w[name], W) for name, W in weights.items()})


def descend(weights: Params, slope: Params, change: Params, eta: float) -> Params:
    """Return clip(W - eta slope * change, 0, 1): a step down the loss at v + change * W.

    slope: the gradient of the loss there.
    """
    return Params(
        {name: (W - eta * slope[name] * change[name]).clamp(0, 1) for name, W in weights.items()}
    )
