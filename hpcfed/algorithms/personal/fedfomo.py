"""FedFomo: each client mixes the models that help on its own validation examples, then trains.

Zhang et al. (Personalized Federated Learning with First Order Model Optimization), ICLR 2021,
arXiv:2012.08565, eqs. 3 to 5 and algorithm 1. L_i is the loss on validation examples, and v_i the
model with which client i began its last training. Negative weights omega are 0, and the others are
scaled to sum 1.

Objective: F_i(w_i)
Server: omega_in <- (L_i(v_i) - L_i(w_n)) / ||w_n - v_i||; p_in <- p_in + omega_in
Round:
1. The server sends each client of the cohort the models w_n of the M other clients of the largest
   affinity p_in, or with a probability epsilon, which falls from round to round, of any.
2. Client i computes the weights omega of these models and of its own last one.
3. It starts from the mixture sum_n omega_in w_n, and trains on its other examples.
4. It sends its model w_i and the weights of the others.
5. The server adds the weights to the affinities p.

Deviations: the authors' code (NVlabs/FedFomo) adds unscaled weights to the affinities, negative
ones too, and takes the norm l1 by default. Where no model is better than v_i, the client starts
from v_i again, as there. As long as the server has no model of another client, a
client receives the initial one in its first round. Batch statistics are mixed with the weights.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt

from hpcfed import Client, Federation, Guide, Params, RoundBased, Shard, Share, Upload, rng
from hpcfed.algorithms import received
from hpcfed.algorithms.decentralised.mixing import mix
from hpcfed.config.conditions import Unused, field
from hpcfed.training.infer import FORWARD, loss_of
from hpcfed.training.server import with_weights

WEIGHT = 4  # bytes of one weight


class FedFomo(RoundBased):
    """The state is the affinity of each client for each other one, p, [K, K]."""

    guide = Guide(
        data="groups of similar clients",
        sent="all weights, of several clients",
        won="groups of clients with the same classes: above FedAvg and five personal methods",
    )

    keeps_weights: ClassVar[bool | None] = True
    unused: ClassVar[Unused] = {
        "weighting": "clients mix models by their losses",
        "local.balanced_batches": "a part of a client's examples is for validation",
    }

    models: PositiveInt = 5
    """Models of other clients that a client receives in a round, M."""
    baseline: Literal["start", "own"] = "start"
    """Models are compared with the one from which the client's last training started, as in the
    authors' code, or with the client's own.
    """
    norm: Literal["l2", "l1"] = "l2"
    """Norm of the difference of two models, by which a lower loss is divided."""
    validation: Share = 0.2
    """Share of a client's training examples on which models are compared, and none is trained."""
    epsilon: Share = 0.3
    """Probability in the first round that a model is chosen at random."""
    epsilon_decay: NonNegativeFloat = field(0.05, used_if="epsilon")
    """Decrease of this probability from round to round."""

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        """Return the most bytes; in a trial there are fewer clients."""
        number, nbytes = min(self.models, fed.K - 1), fed.shapes().nbytes
        return max(1, number) * nbytes, nbytes + WEIGHT * number

    def init(self, fed: Federation) -> Params:
        fed.start_alike()
        return Params(p=torch.zeros(fed.K, fed.K, device=fed.device))

    def receive(self, client: Client, state: Params) -> None:
        """Do nothing: clients keep their models."""

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        return {}  # the server has no model for all clients

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        models = received.models(fed)
        senders = [*fed.gather(dict.fromkeys(models, True))]
        affinity, start = state["p"].cpu().numpy(), fed.initial()
        choices = {i: self.choose(fed, affinity[i], senders, i, t) for i in cohort}
        chosen = {n for i in cohort for n in choices[i]}
        wanted = {n for client in fed.mine(cohort) for n in choices[client.id]}
        sent = fed.each({n: model for n, model in models.items() if n in chosen})
        others = {n: model for n, model in sent if n in wanted}

        def work(client: Client) -> Upload:
            offer = {n: others[n] for n in choices[client.id]}
            if not offer and client.id not in models:
                offer = {client.id: start}
            return self.local(fed, client, offer, t)

        uploads = fed.run(cohort, work)
        received.remember(fed, ((k, {"model": parts["model"]}) for k, parts in uploads.items()))
        p = state["p"].clone()
        weights = {k: parts["weights"] for k, parts in uploads.items() if choices[k]}
        for i, row in fed.gather(weights).items():
            p[i, choices[i]] += row
        return Params(p=p)

    def choose(
        self, fed: Federation, affinity: np.ndarray, senders: list[int], i: int, t: int
    ) -> list[int]:
        """Return the clients whose models client i receives in round t, in id order.

        affinity: [K], of client i.  senders: clients of which the server has a model.
        """
        g = rng.stream(fed.seed, "fomo", t, i)
        others = g.permutation([n for n in senders if n != i]).tolist()  # chance breaks ties
        chosen: list[int] = []
        while others and len(chosen) < self.models:
            explores = g.random() < self.epsilon - t * self.epsilon_decay
            chosen.append(others[0] if explores else max(others, key=affinity.__getitem__))
            others.remove(chosen[-1])
        return sorted(chosen)

    def local(self, fed: Federation, client: Client, state: dict[int, Params], t: int) -> Upload:
        """Mix, train and send.

        state: models of other clients, by id; if there are none yet, the initial one as its own.
        """
        downloads = {n: fed.down(client, model) for n, model in state.items()}
        models = {client.id: client.params(), **downloads}
        start = models[client.id]
        if self.baseline == "start":
            start = Params(client.memory.get("start", start))
        data, validation = client.train.divide(
            self.validation, rng.stream(fed.seed, "validation", client.id)
        )
        weights = self.weigh(fed, client, start, models, validation)
        row = np.array(list(weights.values()))
        client.load(mix({client.id: row}, enumerate(models.values())).get(client.id, start))
        if self.baseline == "start":
            client.memory["start"] = client.params()
        self.train(fed, client, Params(), t, data=data)
        others = [weights[n] for n in downloads if n != client.id]
        if not others:
            return Upload(model=client.params())
        # the weights of the next round belong to other clients
        of_others = torch.tensor(others, device=fed.device)
        return Upload(model=client.params(), weights=of_others, lasting=False)

    def weigh(
        self, fed: Federation, client: Client, start: Params, models: dict[int, Params], data: Shard
    ) -> dict[int, float]:
        """Return the weights of models, by their clients; the client's own model stays as it is.

        start: the model with which they are compared.  data: the validation examples.
        """
        client.model.eval()

        def measure(model: Params) -> float:
            return loss_of(fed, client, with_weights(client.skeleton, model), data)

        fed.tallies[client.id].work += FORWARD * len(data) * (1 + len(models))
        losses = [measure(model) for model in models.values()]
        changes = ((model - start).pick(fed.trainable) for model in models.values())
        lengths = [length(change, self.norm) for change in changes]
        return dict(zip(models, weights_of(measure(start), losses, lengths), strict=True))


def weights_of(loss: float, losses: Sequence[float], lengths: Sequence[float]) -> list[float]:
    """Return the weights of models, >= 0 and of sum 1, or all 0 if none has a lower loss.

    loss: of the model with which they are compared.  losses, lengths: of the models, and of their
    differences from that one.
    """
    gains = [
        max(0.0, loss - other) / distance if distance else 0.0
        for other, distance in zip(losses, lengths, strict=True)
    ]
    return [gain / (sum(gains) or 1.0) for gain in gains]


def length(change: Params, norm: str) -> float:
    """Return the norm of a vector, l1 or l2."""
    if norm == "l2":
        return math.sqrt(change.dot(change))
    return sum(float(value.double().abs().sum()) for value in change.values())
