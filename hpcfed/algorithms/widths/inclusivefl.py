"""InclusiveFL: clients have models of several depths, and shallow models learn from deeper ones.

Layers that several depths have are averaged over all of them. The last layer of a shallow model
learns from the layers that it lacks.

Liu et al. (No One Left Behind: Inclusive Federated Learning over Heterogeneous Devices), KDD 2022,
arXiv:2202.08036. A tier is all clients of one depth: the first L_i of the layers of one model.
The last layer of each tier, what follows it, and the head stay the tier's own. Momentum
distillation changes the last layer of a tier: m is the mean change, a round before, of layers L_i
to L_(i+1) of the next deeper tier; a tier without clients in that round has m = 0. T_l are the
tiers that have layer l in common, and s_i is a tier's share of the weights of the round.

Rests on the authors' code (Rachelxuan11/InclusiveFL) and on the one in royson/reefl; the text of
the paper was not at hand. The authors' clients send one gradient at fixed weights, with which the
server steps by Adam, one for each tier; that is the preset `authors`. Not followed, being defects
of their code: momentum never counts (an inverted test; the change of the last layer is (1 - beta)
g_i in the first round and g_i later); of several layers only the last one counts (= for +=);
gradients are kept by reference and then set to zero. In reefl's code m
is of layers L_i + 1 to L_(i+1) (`distil_from = "above"`), and has the distilled change of that
tier.

Objective: F_k(w_i)
Server: g_i <- sum_(k in i) p_k (w_k - w_i) / sum_(k in i) p_k; g_i <- (1 - beta) g_i + beta m;
w_i <- w_i + g_i; w_l <- sum_(i in T_l) s_i w_il / sum_(i in T_l) s_i
Round:
1. The server sends each client the first layers of one model, as many as its tier has.
2. The client trains them and sends them.
3. The server takes the mean change g_i of each tier i.
4. In a tier's last layer alone, the share beta of the change is m, from the next deeper tier.
5. Layers that several tiers have in common become the mean over these tiers.

Deviations: by default clients train locally and the mean of their models is the server's step. The
authors have a learning rate for each tier, here there is one; their Adam, that of transformers, has
eps = 1e-6, here it is 1e-8. Batch statistics are averaged, not
distilled. Layers are any row of equal blocks (`hpcfed.models.depths`), where the paper has those of
a Transformer. What a model defines before the blocks (embeddings) is common to all tiers; what it
defines after them is each tier's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Share, Upload
from hpcfed.algorithms.global_model.moments import direction
from hpcfed.algorithms.widths.tiers import accuracies, tier_shares, tiers
from hpcfed.config.conditions import SEVERAL, field, other_than
from hpcfed.models.depths import Family

B1, B2, EPS = 0.9, 0.999, 1e-8  # parameters of the server's Adam, torch's defaults


@dataclass(frozen=True)
class State:
    """The server's model of each tier, and its momentum.

    models: those of each tier, "ARCHITECTURE/name"; tensors that several tiers have are equal.
    momentum: what the next shallower tier's last block learns from, "ARCHITECTURE/rest".
    m, v: moments of the server's Adam, of parameters; empty without it.
    steps: steps of each tier's Adam, [tiers].
    """

    models: Params
    momentum: Params
    m: Params
    v: Params
    steps: torch.Tensor


class InclusiveFL(RoundBased):
    """With one depth InclusiveFL is FedAvg, bit for bit."""

    guide = Guide(
        data="alike",
        sent="the first layers of one model",
        won="language models with devices of different depth",
    )

    accepts: ClassVar[str] = "depths"
    per: ClassVar[str] = "tensor"
    trains_parts: ClassVar[bool] = False

    beta: Share = field(0.2, used_if={"models.mix": SEVERAL})
    """Weight of the deeper tier's momentum in the last layer of a shallower one; 0: none."""
    distil_from: Literal["last", "above"] = field("last", used_if="beta")
    """The deeper tier's layers from which momentum comes: from the shallower one's last layer on,
    or only those above it.
    """
    server_optimiser: Literal["none", "adam"] = "none"
    """The server's step: to the mean of the clients' models, or by Adam with their mean change."""
    server_lr: PositiveFloat = field(5e-5, used_if={"server_optimiser": other_than("none")})
    """Learning rate of the server's Adam."""

    def init(self, fed: Federation) -> State:
        kin = tiers(fed)
        deepest = kin.tiers[-1]
        start = fed.initial(architecture=deepest)
        models, trained = Params(), Params()
        for kind in kin.tiers:
            names = fed.shapes(architecture=kind)
            weights = start.pick(names.__contains__)
            models.update(weights.clone().prefixed(f"{kind}/"))
            if self.server_optimiser == "adam":
                trained.update((weights.pick(fed.trainable) * 0).prefixed(f"{kind}/"))
        momentum = Params(
            {
                f"{kind}/{rest}": torch.zeros_like(start[kin.block(0, rest)])
                for kind in kin.tiers[1:]
                for rest, is_param in kin.inner.items()
                if is_param
            }
        )
        steps = torch.zeros(len(kin.tiers), dtype=torch.int64, device=fed.device)
        return State(models, momentum, trained, trained.clone(), steps)

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        return state.models.under(f"{client.architecture}/")

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        return super().columns(fed, state) | accuracies(self, fed, state)

    def averaged(self, fed: Federation, state: State) -> Params:
        return state.models

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        self.train(fed, client, download, t)
        sent = client.params(self.shared).prefixed(f"{client.architecture}/")
        return Upload(
            Mean.of(sent, self.weight(client)),
            relative_to=download.prefixed(f"{client.architecture}/"),
        )

    def server(self, fed: Federation, state: State, mean: Params, cohort: list[int]) -> State:
        return self.step(tiers(fed), state, mean, tier_shares(self, fed, cohort))

    def step(self, kin: Family, state: State, means: Params, shares: Mapping[str, float]) -> State:
        """Return the new state.

        means: mean models of each tier.  shares: each tier's share of the weights of this round; 0
        for a tier without clients.
        """
        new, momentum = Params(means), state.momentum * 0
        m, v, steps = Params(state.m), Params(state.v), state.steps.clone()
        for i, kind in enumerate(kin.tiers):
            if not shares[kind]:
                continue
            old = state.models.under(f"{kind}/")
            change = means.under(f"{kind}/") - old
            if i and self.beta:
                shallower = kin.depths[kin.tiers[i - 1]]
                start = shallower - (self.distil_from == "last")
                momentum.update(mean_change(kin, kind, change, start))
            if i + 1 < len(kin.tiers) and self.beta:
                deeper = state.momentum.under(f"{kin.tiers[i + 1]}/")
                for rest, value in deeper.items():
                    name = kin.block(kin.depths[kind] - 1, rest)
                    change[name] = (1 - self.beta) * change[name] + self.beta * value
                    new[f"{kind}/{name}"] = old[name] + change[name]
            if self.server_optimiser == "adam":
                steps[i] += 1
                for name in state.m.under(f"{kind}/"):
                    key = f"{kind}/{name}"
                    m[key] = B1 * m[key] + (1 - B1) * change[name]
                    v[key] = B2 * v[key] + (1 - B2) * change[name].square()
                    n = int(steps[i])
                    unbiased = (1 - B1**n), (1 - B2**n)
                    step = direction(m[key] / unbiased[0], v[key] / unbiased[1], EPS)
                    new[key] = old[name] + self.server_lr * step
        return State(share_layers(kin, state.models, new, shares), momentum, m, v, steps)


def mean_change(kin: Family, kind: str, change: Params, start: int) -> Params:
    """Return the mean change of the parameters of a tier's blocks from block `start` on.

    The parameters are named "ARCHITECTURE/rest".
    """
    blocks = range(start, kin.depths[kind])
    return Params(
        {
            f"{kind}/{rest}": torch.stack([change[kin.block(b, rest)] for b in blocks]).mean(0)
            for rest, is_param in kin.inner.items()
            if is_param
        }
    )


def share_layers(kin: Family, old: Params, new: Params, shares: Mapping[str, float]) -> Params:
    """Return the tiers' models after averaging each tensor that several tiers have.

    The mean is over those of these tiers that had clients in this round, by their shares. A tensor
    of which none had clients stays as it was.
    """
    merged = Params(new)
    deepest = kin.tiers[-1]
    for name in old.under(f"{deepest}/"):
        mine = [k for k in kin.tiers if f"{k}/{name}" in old and kin.common(k, name)]
        active = [k for k in mine if shares[k]]
        if len(active) == 1:
            value = new[f"{active[0]}/{name}"]
        elif active:
            total = sum(shares[k] for k in active)
            value = torch.stack([new[f"{k}/{name}"] * (shares[k] / total) for k in active]).sum(0)
        else:
            value = old[f"{deepest}/{name}"]
        merged.update({f"{kind}/{name}": value for kind in mine})
    return merged
