"""KT-pFL: each client learns from its own mixture of all clients' predictions.

The coefficients of the mixtures are learnt too.

Zhang et al., NeurIPS 2021, arXiv:2111.02862, algorithm 1. share = "weights" is "+weight" of Jang et
al., ICPP 2022, doi:10.1145/3545008.3545073, table 3.

Deviations: a cohort mixes only its own members, their rows scaled to sum 1. Rows are projected onto
the simplex. The penalty's step never overshoots. distil_lr is the objective's lambda. Preset
"authors" has what their code has: coeff_distance = "mse" for the coefficients alone, softmax =
true; but neither its step, which adapts to the gradient, nor its order. In a round their code first
updates the coefficients, distils by the updated ones, and trains on own data afterwards. Here, as
in the paper's algorithm, clients train, then distil by the coefficients of the round before, which
are updated last. With share = "weights" no source says how far clients go: by default they go all
the way to their mixtures.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Paired, Params, RoundBased, Shard, Upload, sgd
from hpcfed.config.conditions import Unused, above, at_most, field, other_than, unless
from hpcfed.training.infer import logits
from hpcfed.training.losses import distil, soften

WHOLE = 0.5  # learning rate with which one step down ||w - theta||^2 ends at theta
TINY = 1e-30  # lower bound: a soft prediction that has underflowed to 0 still has a logarithm
Distance = Literal["kl", "mse"]


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
            {"share": "predictions", "coeff_distance": None},
        ),
    )
    """Distillation: distance of a client's predictions from its mixture, Kullback-Leibler
    divergence or squared distance.
    """
    coeff_distance: Distance | None = field(
        None, used_if={"share": "predictions", "coeff_lr": above(0)}
    )
    """The same distance where the coefficients learn; none: that of the distillation."""
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
    softmax: bool = False
    """Rows of coefficients become softmax(5 c) instead of the nearest point of the simplex."""
    ramp: NonNegativeInt = 0
    """Local epochs are 1 in the first round, 2 in the next, up to so many; 0: local.epochs."""

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
        new = fed.on_root(
            lambda: update_coefficients(rows, gradient, self.coeff_lr, self.rho, self.softmax)
        )
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
        return Upload(soften(logits(fed, client, data), self.tau))

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
        soft = torch.stack(
            list(fed.gather(sent).values())
        ).double()  # [m, U, C], in the cohort's order

        def learn(client: Client) -> None:
            mixed = torch.tensordot(rows[cohort.index(client.id)], soft, 1).float()
            target = fed.down(client, mixed)
            if self.distil:
                tau, distance = self.tau, self.distance
                loss = lambda model, x, soft: mixture_loss(soft, model(x), tau, distance)  # noqa: E731
                how: dict[str, Any] = {
                    "data": Paired(data, target),
                    "epochs": self.distil,
                    "size": self.distil_batch,
                    "lr": self.distil_lr,
                }
                sgd(fed, client, t, loss, phase="distil", **how)

        fed.run(cohort, learn)
        distance = self.coeff_distance or self.distance
        return fed.on_root(lambda: of_predictions(rows, soft, distance))

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
                gram[k].append(inner(model, other))
        # share of the difference that is left after these steps
        left = (1 - 2 * (self.distil_lr or WHOLE)) ** self.distil
        for client in fed.mine(sent):
            theta = fed.down(client, mixed[client.id].map(Tensor.float))
            if self.distil:
                client.load(theta + (client.params() - theta) * left)
        products = list(fed.gather(gram).values())
        return of_weights(rows, torch.tensor(products, dtype=torch.float64, device=rows.device))


def among(coeff: Tensor, ks: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the rows and columns of these clients, [m, m], scaled to row sums 1, and the old sums.

    The old sums of the rows are [m, 1]. A row that gives these clients nothing becomes uniform.
    """
    rows = coeff[list(ks)][:, list(ks)]
    mass = rows.sum(1, keepdim=True)
    return torch.where(mass > 0, rows / mass.clamp(min=TINY), 1 / len(ks)), mass


def put(coeff: Tensor, ks: Sequence[int], rows: Tensor, mass: Tensor) -> Tensor:
    """Return the coefficients with these clients' new rows: the inverse of `among`."""
    new, at = coeff.clone(), torch.as_tensor(list(ks), device=coeff.device)
    new[at[:, None], at] = rows * mass
    return new


def of_predictions(rows: Tensor, soft: Tensor, distance: Distance = "kl") -> Tensor:
    """Return the gradient of each client's distance from its mixture to its own prediction.

    The gradient is with respect to the rows, [m, m].
    soft: [m, U, C], float64.  With g_n = sum_m c_nm s_m the distance is KL(g_n || s_n), or the
    squared distance of both; it is summed over classes, with the mean over the U examples.
    """
    mixed = torch.tensordot(rows, soft, 1)
    slope = (
        2 * (mixed - soft)
        if distance == "mse"
        else mixed.clamp(min=TINY).log() - soft.clamp(min=TINY).log() + 1
    )
    return slope.flatten(1) @ soft.flatten(1).T / soft.shape[1]


def of_weights(rows: Tensor, gram: Tensor) -> Tensor:
    """Return the gradient with respect to the rows, [m, m], of ||w_n - sum_m c_nm w_m||^2.

    gram: [m, m], <w_i, w_j>.
    """
    return 2 * (rows @ gram - gram)


def update_coefficients(
    rows: Tensor, gradient: Tensor, lr: float, rho: float, softmax: bool = False
) -> Tensor:
    """Take one gradient step with the penalty rho ||c - 1/m||^2, and return rows of sum 1.

    The step is at most 1 / (2 rho), beyond which the penalty alone would overshoot.
    softmax: rows become softmax(5 c), as in the authors' code, instead of the nearest point of the
    simplex.
    """
    step = min(lr, 1 / (2 * rho)) if rho else lr
    new = rows - step * (gradient + 2 * rho * (rows - 1 / len(rows)))
    return torch.softmax(5 * new, dim=1) if softmax else simplex(new)


def simplex(rows: Tensor) -> Tensor:
    """Return for each row the nearest point that is >= 0 and sums to 1.

    Duchi et al., ICML 2008, figure 1.
    """
    falling, count = (
        rows.sort(dim=1, descending=True).values,
        torch.arange(1, rows.shape[1] + 1, device=rows.device),
    )
    excess = (falling.cumsum(1) - 1) / count
    last = (falling > excess).sum(1, keepdim=True)
    return (rows - excess.gather(1, last - 1)).clamp(min=0)


def inner(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Return <a, b> over all tensors, in float64."""
    return sum(
        float(torch.vdot(a[name].flatten().double(), b[name].flatten().double())) for name in a
    )


def mixture_loss(target: Tensor, logits: Tensor, tau: float, distance: Distance = "kl") -> Tensor:
    """Return the distance of a student from its mixture.

    It is KL(target || softmax(logits / tau)), or the squared distance of both, summed over classes,
    with the mean over examples.
    target: [n, C], probabilities.  logits: [n, C].
    """
    if distance == "kl":
        return distil(target, logits / tau)
    return (torch.softmax(logits / tau, dim=1) - target).square().sum(1).mean()
