"""KT-pFL: each client learns from its own mixture of all clients' predictions.

The coefficients of the mixtures are learnt too.

Zhang et al., NeurIPS 2021, arXiv:2111.02862, algorithm 1. share = "weights" is "+weight" of Jang et
al., ICPP 2022, doi:10.1145/3545008.3545073, table 3: clients send models, and
the squared distance ||w_k - sum_l c_kl w_l||^2 stands for the KL, in the server's step too.

Objective: F_k(w_k), then KL(sum_l c_kl s_l(x) || s_k(x))
Server: c <- c - eta_c grad_c (sum_k KL(sum_l c_kl s_l(x) || s_k(x)) + rho ||c - 1 / K||^2)
Round:
1. Each client trains on its own examples.
2. It sends its soft predictions s_k(x), at temperature tau, of public examples x.
3. The server mixes them into a target for each client, by its row of coefficients c.
4. Each client learns its target.
5. The server takes a gradient step of c at rate eta_c (coeff_lr), with the s_k of line 2.

Deviations: a cohort mixes only its own members, their rows scaled to sum 1. Rows are projected onto
the simplex. The penalty's step never overshoots. distil_lr is the objective's lambda. Preset
"authors" has the settings of their code, but not how it updates the coefficients: by squared
distances, with a step that adapts to the gradient, to softmax(5 c), before clients distil and
train. Here, as in the paper's algorithm, clients train, then distil by the coefficients of the
round before, which are updated last. With share = "weights" no source says how far clients go: by
default they go all the way to their mixtures.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Paired, Params, RoundBased, Shard, Upload, sgd
from hpcfed.algorithms.public_data.mixtures import (
    Distance,
    among,
    of_predictions,
    of_weights,
    put,
    update_coefficients,
)
from hpcfed.config.conditions import Unused, above, at_most, field, other_than, unless
from hpcfed.training.infer import logits
from hpcfed.training.losses import distil, soften

WHOLE = 0.5  # learning rate with which one step down ||w - theta||^2 ends at theta


class KTpFL(RoundBased):
    """Without distillation KT-pFL is Local, bit for bit."""

    guide = Guide(
        data="different labels; public data",
        sent="scores of public examples, or weights",
        won="personal mixtures, above FedMD and FedDF",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"
    unused: ClassVar[Unused] = {
        "weighting": "the coefficients are the weights",
        "local.epochs": unless({"ramp": 0}, "algorithm.ramp stands instead of it"),
        "local.steps": unless({"ramp": 0}, "algorithm.ramp stands instead of it"),
    }

    share: Literal["predictions", "weights"] = "predictions"
    """Clients exchange soft predictions of public examples, or ("+weight", one architecture) their
    models.
    """
    public: PositiveInt = field(3000, used_if={"share": "predictions"})
    """Public examples drawn for each round."""
    tau: PositiveFloat = field(10.0, used_if={"share": "predictions"})
    """Temperature of the soft predictions."""
    distance: Distance = field(
        "kl",
        used_if=(
            {"share": "predictions", "distil": above(0)},
            {"share": "predictions", "coeff_lr": above(0)},
        ),
    )
    """Distance of a client's predictions from its mixture, Kullback-Leibler divergence or squared
    distance, for distillation and for the coefficients.
    """
    distil: NonNegativeInt = field(
        1,
        used_if=(
            {"share": "predictions"},
            {"distil": at_most(1)},
            {"distil_lr": other_than(None, WHOLE)},
        ),
    )
    """Passes over the public examples in a round, or gradient steps towards the mixed models; 0:
    none.
    """
    distil_batch: PositiveInt = field(256, used_if={"share": "predictions", "distil": above(0)})
    """Public examples in one step of distillation."""
    distil_lr: PositiveFloat | None = field(None, used_if="distil")
    """Learning rate of distillation; none: local.lr, and with share = "weights" 0.5, which goes all
    the way to the mixture.
    """
    rho: NonNegativeFloat = field(0.7, used_if="coeff_lr")
    """Weight of the penalty that draws the coefficients towards equal ones."""
    coeff_lr: NonNegativeFloat = 0.01
    """Learning rate of the coefficients."""
    ramp: NonNegativeInt = 0
    """Local epochs are 1 in the first round, 2 in the next, up to this number; 0: local.epochs."""

    @property
    def accepts(self) -> str:
        return "any models" if self.share == "predictions" else "one architecture"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("public",) if self.share == "predictions" else ()

    @property
    def trains_once(self) -> bool:
        """Whether neither a number of epochs of its own nor distillation adds steps."""
        return not self.ramp and (self.share == "weights" or not self.distil)

    def shared(self, name: str) -> bool:
        return False

    def init(self, fed: Federation) -> Params:
        if self.share == "weights":
            fed.start_alike()  # mixed models must begin alike
        return Params(
            coeff=torch.full((fed.K, fed.K), 1 / fed.K, dtype=torch.float64, device=fed.device)
        )

    def receive(self, client: Client, state: Params) -> None:
        """Do nothing: clients keep their models."""

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        data = None
        if self.share == "predictions":
            data = fed.public.pick(fed.draw_public(t, self.public))
        sent = fed.run(cohort, lambda client: self.answer(fed, client, state, t, data))
        rows, mass = among(state["coeff"], cohort)
        gradient = (
            self.move_weights(fed, cohort, rows, sent)
            if data is None
            else self.learn_predictions(fed, cohort, rows, t, data, sent)
        )
        new = fed.on_root(lambda: update_coefficients(rows, gradient, self.coeff_lr, self.rho))
        return Params(coeff=put(state["coeff"], cohort, new, mass))

    def answer(
        self, fed: Federation, client: Client, state: Params, t: int, data: Shard | None
    ) -> Upload:
        """Train the client on its own data; return its soft predictions of the public data.

        data: the round's; None: it returns its model.
        """
        self.train(fed, client, state, t, epochs=min(t + 1, self.ramp) or None)
        if data is None:
            return Upload(client.params())
        return Upload(soften(logits(fed, client, data), self.tau), lasting=False)

    def learn_predictions(
        self,
        fed: Federation,
        cohort: Sequence[int],
        rows: Tensor,
        t: int,
        data: Shard,
        sent: Mapping[int, Tensor],
    ) -> Tensor:
        """Train each client of the cohort on its mixture of soft predictions.

        Returns the gradient for the rows.
        rows: [m, m], a row for each client of the cohort, float64, each of sum 1.
        data: the round's public examples.  sent: the soft predictions of this rank's clients.
        """
        # [m, U, C], in the cohort's order
        soft = torch.stack(list(fed.gather(sent).values())).double()

        def learn(client: Client) -> None:
            mixed = torch.tensordot(rows[cohort.index(client.id)], soft, 1).float()
            target = fed.down(client, mixed)
            if self.distil:
                sgd(
                    fed,
                    client,
                    t,
                    self.loss_of_mixture,
                    phase="distil",
                    data=Paired(data, target),
                    epochs=self.distil,
                    size=self.distil_batch,
                    lr=self.distil_lr,
                )

        fed.run(cohort, learn)
        return fed.on_root(lambda: of_predictions(rows, soft, self.distance))

    def loss_of_mixture(self, model: Any, x: Any, target: Tensor) -> Tensor:
        """Return the loss on one batch of public examples with their mixed soft predictions."""
        return mixture_loss(target, model(x), self.tau, self.distance)

    def move_weights(
        self, fed: Federation, cohort: Sequence[int], rows: Tensor, sent: Mapping[int, Params]
    ) -> Tensor:
        """Let each client of the cohort descend ||w_n - theta_n||^2 to its mixture of models.

        Returns the gradient for the rows.
        sent: the models of this rank's clients.

        The models go from rank to rank one after the other; a rank keeps its own clients' models
        and mixtures. Batch statistics move as weights do.
        """
        mixed = {k: model.map(lambda v: v.double() * 0) for k, model in sent.items()}
        gram: dict[int, list[float]] = {k: [] for k in sent}
        for j, (_, other) in enumerate(fed.each(sent)):
            for k, model in sent.items():
                mixed[k] += other.map(Tensor.double) * float(rows[cohort.index(k), j])
                gram[k].append(model.dot(other))
        # share of the difference that is left after these steps
        remainder = (1 - 2 * (self.distil_lr or WHOLE)) ** self.distil
        for client in fed.mine(sent):
            theta = fed.down(client, mixed[client.id].map(Tensor.float))
            if self.distil:
                client.load(theta + (client.params() - theta) * remainder)
        products = list(fed.gather(gram).values())
        return of_weights(rows, torch.tensor(products, dtype=torch.float64, device=rows.device))


def mixture_loss(target: Tensor, logits: Tensor, tau: float, distance: Distance = "kl") -> Tensor:
    """Return the distance of a student from its mixture.

    It is KL(target || softmax(logits / tau)), or the squared distance of both, summed over classes,
    with the mean over examples.
    target: [n, C], probabilities.  logits: [n, C].
    """
    if distance == "kl":
        return distil(target, logits / tau)
    return (torch.softmax(logits / tau, dim=1) - target).square().sum(1).mean()
