"""Personal mixtures: how much each client takes from every other, and how these coefficients learn.

Zhang et al. (KT-pFL), NeurIPS 2021, arXiv:2111.02862. Rows of coefficients are float64 and sum to
1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from hpcfed.clients.client import Paired
from hpcfed.training.infer import logits
from hpcfed.training.local import sgd
from hpcfed.training.losses import distil, soften

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation

TINY = 1e-30  # a soft prediction that has underflowed to 0 still has a logarithm
Distance = Literal["kl", "mse"]


def by_predictions(
    fed: Federation,
    cohort: Sequence[int],
    rows: Tensor,
    t: int,
    *,
    public: int,
    tau: float,
    distance: Distance,
    coeff_distance: Distance,
    passes: int,
    size: int,
    lr: float | None,
) -> Tensor:
    """Each client of the cohort learns from its mixture of soft predictions; returns the gradient
    for the rows.

    rows: [m, m], a row for each of the cohort.  public: examples drawn for the round.  distance: of
    the distillation.  coeff_distance: of the gradient for the rows.  size, lr: of a step.
    """
    data = fed.public.pick(fed.draw_public(t, public))
    gathered = fed.gather(fed.run(cohort, lambda client: soften(logits(fed, client, data), tau)))
    soft = torch.stack(list(gathered.values())).double()  # [m, U, C], in the order of the cohort

    def learn(client: Client) -> None:
        target = fed.down(client, torch.tensordot(rows[cohort.index(client.id)], soft, 1).float())
        if passes:
            loss = lambda model, x, soft: mixture_loss(soft, model(x), tau, distance)  # noqa: E731
            sgd(
                fed,
                client,
                t,
                loss,
                data=Paired(data, target),
                epochs=passes,
                size=size,
                lr=lr,
                phase="distil",
            )

    fed.run(cohort, learn)
    return fed.on_root(lambda: of_predictions(rows, soft, coeff_distance))


def by_weights(
    fed: Federation, cohort: Sequence[int], rows: Tensor, t: int, *, steps: int, lr: float
) -> Tensor:
    """Each client of the cohort descends ||w_n - theta_n||^2 to its mixture of models; returns the
    gradient.

    The models go from rank to rank one after the other; a rank keeps its own clients' models and
    mixtures. Batch statistics move as weights do.
    """
    own = {c.id: fed.up(c, c.params()) for c in fed.mine(cohort)}
    mixed = {k: model.map(lambda v: v.double() * 0) for k, model in own.items()}
    gram: dict[int, list[float]] = {k: [] for k in own}
    for j, (_, other) in enumerate(fed.each(own)):
        for k, model in own.items():
            mixed[k] += other.map(Tensor.double) * float(rows[cohort.index(k), j])
            gram[k].append(inner(model, other))
    left = (1 - 2 * lr) ** steps  # of the difference, after so many steps
    for client in fed.mine(cohort):
        theta = fed.down(client, mixed[client.id].map(Tensor.float))
        if steps:
            client.load(theta + (own[client.id] - theta) * left)
    products = list(fed.gather(gram).values())
    return of_weights(rows, torch.tensor(products, dtype=torch.float64, device=rows.device))


def among(coeff: Tensor, ks: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The rows and columns of these clients, each row scaled to sum 1, and what it summed to: [m,
    m], [m, 1].

    A row that gives these clients nothing is uniform here.
    """
    rows = coeff[list(ks)][:, list(ks)]
    mass = rows.sum(1, keepdim=True)
    return torch.where(mass > 0, rows / mass.clamp(min=TINY), 1 / len(ks)), mass


def put(coeff: Tensor, ks: Sequence[int], rows: Tensor, mass: Tensor) -> Tensor:
    """The coefficients with these clients' new rows: the inverse of `among`."""
    new, at = coeff.clone(), torch.as_tensor(list(ks), device=coeff.device)
    new[at[:, None], at] = rows * mass
    return new


def of_predictions(rows: Tensor, soft: Tensor, distance: Distance = "kl") -> Tensor:
    """Gradient with respect to the rows, [m, m], of each client's distance from its mixture to its
    own prediction.

    soft: [m, U, C], float64.  With g_n = sum_m c_nm s_m: KL(g_n || s_n), or the squared distance of
    both; summed over classes, mean over the U examples.
    """
    mixed = torch.tensordot(rows, soft, 1)
    slope = (
        2 * (mixed - soft)
        if distance == "mse"
        else mixed.clamp(min=TINY).log() - soft.clamp(min=TINY).log() + 1
    )
    return slope.flatten(1) @ soft.flatten(1).T / soft.shape[1]


def of_weights(rows: Tensor, gram: Tensor) -> Tensor:
    """Gradient with respect to the rows, [m, m], of ||w_n - sum_m c_nm w_m||^2; gram: [m, m], <w_i,
    w_j>.
    """
    return 2 * (rows @ gram - gram)


def update_coefficients(
    rows: Tensor, gradient: Tensor, lr: float, rho: float, softmax: bool = False
) -> Tensor:
    """One gradient step with the penalty rho ||c - 1/m||^2, then each row back to one that sums to
    1.

    The step is at most 1 / (2 rho), beyond which the penalty alone would overshoot.
    softmax: rows become softmax(5 c), as in the authors' code, instead of the nearest point of the
    simplex.
    """
    step = min(lr, 1 / (2 * rho)) if rho else lr
    moved = rows - step * (gradient + 2 * rho * (rows - 1 / len(rows)))
    return torch.softmax(5 * moved, dim=1) if softmax else simplex(moved)


def simplex(rows: Tensor) -> Tensor:
    """The nearest point, to each row, of those that are >= 0 and sum to 1. Duchi et al., ICML 2008,
    figure 1.
    """
    falling, count = (
        rows.sort(dim=1, descending=True).values,
        torch.arange(1, rows.shape[1] + 1, device=rows.device),
    )
    excess = (falling.cumsum(1) - 1) / count
    last = (falling > excess).sum(1, keepdim=True)
    return (rows - excess.gather(1, last - 1)).clamp(min=0)


def inner(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """<a, b> over all tensors, in float64."""
    return sum(
        float(torch.vdot(a[name].flatten().double(), b[name].flatten().double())) for name in a
    )


def mixture_loss(target: Tensor, logits: Tensor, tau: float, distance: Distance = "kl") -> Tensor:
    """How far a student is from its mixture: KL(target || softmax(logits / tau)), or the squared
    distance of both.

    target: [n, C], probabilities.  logits: [n, C].  Summed over classes, mean over examples.
    """
    if distance == "kl":
        return distil(target, logits / tau)
    return (torch.softmax(logits / tau, dim=1) - target).square().sum(1).mean()
