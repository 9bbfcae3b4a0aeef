"""Matching of the units of several models to units of one wider model, for PFNM and FedMA.

The wider model has as many units as the beta process finds.

Yurochkin et al. (Bayesian Nonparametric Federated Learning of Neural Networks), ICML 2019,
arXiv:1905.12022. A unit is a vector v. The values of the wide model's units have the prior
N(m, sigma0), where m is 0, or `bias_mean` for biases. A client's value is drawn around the wide
model's with precision p_k (1 / variance): 1 / sigma, and share / sigma for the weights towards a
class, where share is the client's part of all examples of that class. Client by client, the
Hungarian method assigns units so that the posterior is largest. With p0 = 1 / sigma0 the gain of a
unit of client k is, summed over the values of the vector,

- if it is matched to unit i of the wide model, which n_i of the J clients have, with the sums
  S_i = p0 m + sum_j p_j v_j and P_i = p0 + sum_j p_j over the other clients that have it,
  (S_i + p_k v)^2 / (P_i + p_k) - S_i^2 / P_i + 2 log(n_i / (J - n_i)),
- if it becomes the i-th new unit:
  (p0 m + p_k v)^2 / (p0 + p_k) - (p0 m)^2 / p0 - 2 log i + 2 log(gamma / J).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfed import Params
from hpcfed.algorithms.matching.permutation import Order, Wanted, unit_vectors
from hpcfed.models.trace import FIXED
from hpcfed.models.widths import Units, indices, place

HEAD = "head.weight"
HEADS = (HEAD, "head.bias")  # the tensors of the last layer, whose outputs are the classes


@dataclass(frozen=True)
class Prior:
    """Prior of the units of the wide model.

    sigma0, sigma: variances.  gamma: mass of the beta process; a larger mass gives more units.
    bias_mean: mean of the prior of biases.
    """

    sigma0: float = 1.0
    sigma: float = 1.0
    gamma: float = 1.0
    bias_mean: float = 0.0

    def mean(self, name: str) -> float:
        """Return the mean of the prior of a tensor's values."""
        return self.bias_mean if name.endswith("bias") else 0.0


class Wide(NamedTuple):
    """The result of matching several models.

    models: each model in the places of the wide model, 0 where it has no unit.  orders: for each
    model, by group, the place of each of its units.  units: the wide model's groups.
    """

    models: list[Params]
    orders: list[Order]
    units: Units


class Unit(NamedTuple):
    """What is assumed of a vector of f values.

    mean: [f], mean of the prior.  precisions: [J, f], those of each client's values.
    """

    mean: np.ndarray
    precisions: np.ndarray


def gains(
    v: np.ndarray,
    precision: np.ndarray,
    total: np.ndarray,
    mass: np.ndarray,
    mean: np.ndarray,
    counts: np.ndarray,
    J: int,
    prior: Prior,
) -> np.ndarray:
    """Return the gain of matching a client's units to the wide model's units, and to new ones.

    v: [L, f], the client's units.  precision: [f].  total: [I, f], for each unit of the wide model
    the sum of the other clients' vectors times their precisions.  mass: [I, f], the sum of these
    precisions.  mean: [f], mean of the prior.  counts: [I], number of the other clients that have
    the unit, at least 1.  J: number of clients.
    Returns [L, I + L]; every unit may become a new one.
    """
    p0 = 1 / prior.sigma0
    weighted, base = precision * v, p0 * mean
    before, after = p0 + mass, p0 + mass + precision  # [I, f]
    S = base + total  # [I, f]
    existing = np.square(weighted) @ (1 / after).T + 2 * weighted @ (S / after).T
    existing += (np.square(S) * (1 / after - 1 / before)).sum(1)
    existing = existing + 2 * np.log(counts / (J - counts))
    new = (np.square(weighted + base) / (p0 + precision)).sum(1) - (np.square(base) / p0).sum()
    new += 2 * np.log(prior.gamma / J)
    return np.hstack([existing, new[:, None] - 2 * np.log(np.arange(1, len(v) + 1))])


def match_units(
    vectors: Sequence[np.ndarray], unit: Unit, prior: Prior, sweeps: int
) -> list[np.ndarray]:
    """Return for each client the units of the wide model that its own units are matched to, [L_k].

    vectors: the units of each client, [L_k, f], float64.

    First each client is added to those before it; the first client's units are taken as they are.
    Then each client is taken out and added again, in at most `sweeps` sweeps, until a sweep changes
    nothing. The units of the wide model that most clients have come first, the others in the order
    of clients.
    """
    from scipy.optimize import linear_sum_assignment  # here: it takes a moment to import

    J = len(vectors)
    assignments: list[Any] = [np.arange(len(vectors[0])), *[None] * (J - 1)]
    for sweep in range(sweeps + 1):
        before = list(assignments)
        for k in range(0 if sweep else 1, J):
            if J == 1:
                break
            others = [a if j != k else None for j, a in enumerate(assignments)]
            number, others = drop_empty(others)
            total, counts = np.zeros((number, vectors[k].shape[1])), np.zeros(number)
            mass = np.zeros_like(total)
            for v, precision, at in zip(vectors, unit.precisions, others, strict=True):
                if at is not None:
                    total[at] += precision * v  # a client has a unit at most once
                    mass[at] += precision
                    counts[at] += 1
            precision_k = unit.precisions[k]
            gain = gains(vectors[k], precision_k, total, mass, unit.mean, counts, J, prior)
            others[k] = linear_sum_assignment(gain, maximize=True)[1]
            _, assignments = drop_empty(others)
        if sweep and all(map(np.array_equal, before, assignments)):
            break
    return by_popularity([at for at in assignments if at is not None])


def drop_empty(assignments: Sequence[np.ndarray | None]) -> tuple[int, list[np.ndarray | None]]:
    """Drop the units that no client has; return their number and the renumbered assignments.

    The number is that of the remaining units, which keep their order.
    """
    used = np.unique(np.concatenate([at for at in assignments if at is not None]))
    return len(used), [None if at is None else np.searchsorted(used, at) for at in assignments]


def by_popularity(assignments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the same assignments, renumbered so that units of more clients come first."""
    counts = np.bincount(np.concatenate(assignments))
    place = np.argsort(np.argsort(-counts, kind="stable"), kind="stable")
    return [place[at] for at in assignments]


def comparable(units: Units, group: int, done: Collection[int]) -> Wanted:
    """Return a test for the names of tensors: whether a group's units are compared by this tensor.

    Apart from this group, such a tensor has only units of groups that are matched already, whose
    places are known, and inputs and classes.
    """

    def counts(name: str) -> bool:
        axes = [{s.group for s in axis} - {FIXED} for axis in units.axes.get(name, ())]
        return sum(group in axis for axis in axes) == 1 and set().union(*axes) - {group} <= set(
            done
        )

    return counts


def match_models(
    models: Sequence[Mapping[str, Tensor]],
    units: Units,
    plan: Sequence[int],
    wanted: Wanted,
    prior: Prior,
    sweeps: int,
    done: Sequence[Order] = (),
    shares: Sequence[Tensor] = (),
) -> Wide:
    """Match models of one architecture group by group.

    units: the wide model's groups, as far as they are matched.  plan: the groups in the order in
    which they are matched.  wanted: tensors that count, among the `comparable` ones.  done: for
    each model the groups that are matched already; the models are then in the places of the wide
    model.  shares: for each model its part of the examples of each class, [C], by which its weights
    towards the classes count; none: as its other weights do.
    """
    now, spread = units, [Params(model) for model in models]
    orders: list[Order] = [dict(order) for order in done] or [{} for _ in models]
    for group in plan:
        compares = comparable(units, group, orders[0])
        counts = lambda name, compares=compares: wanted(name) and compares(name)  # noqa: E731
        vectors = [unit_vectors(m, now, group, counts, (0, 1)).cpu().numpy() for m in spread]
        unit = describe_unit(spread[0], now, group, counts, prior, len(models), shares)
        assignments = match_units(vectors, unit, prior, sweeps)
        wide = widen(now, group, 1 + max(int(at.max()) for at in assignments))
        spread = [
            place(model, wide.places({group: at}), wide)
            for model, at in zip(spread, assignments, strict=True)
        ]
        for order, at in zip(orders, assignments, strict=True):
            order[group] = at
        now = wide
    return Wide(spread, orders, now)


def describe_unit(
    model: Mapping[str, Tensor],
    units: Units,
    group: int,
    wanted: Wanted,
    prior: Prior,
    J: int,
    shares: Sequence[Tensor],
) -> Unit:
    """Return the prior and the precisions of the vectors that `unit_vectors` returns.

    model: any of the J models; only its shapes matter.
    """

    def spread(value: Callable[[str], Any]) -> np.ndarray:
        """Return one value for each of a unit's: value(name) broadcasts against the tensor."""
        one = {
            n: torch.as_tensor(value(n), dtype=torch.float64).expand(v.shape)
            for n, v in model.items()
        }
        return unit_vectors(one, units, group, wanted, (0, 1))[0].cpu().numpy()

    C = len(shares[0]) if shares else 0
    column = spread(lambda name: torch.arange(1, C + 1)[:, None] if C and name == HEAD else 0)
    by_class = torch.ones(J, 1 + C, dtype=torch.float64)
    if C:
        by_class[:, 1:] = torch.stack(list(shares))
    precisions = by_class.numpy()[:, column.astype(int)] / prior.sigma
    return Unit(spread(prior.mean), precisions)


def widen(units: Units, group: int, size: int) -> Units:
    """Return the groups of the same model in which this group has `size` units."""
    axes = {
        name: tuple(
            tuple(s._replace(size=size) if s.group == group else s for s in axis) for axis in each
        )
        for name, each in units.axes.items()
    }
    return Units({**units.sizes, group: size}, axes)


def fuse(
    wide: Wide,
    weights: Sequence[float],
    side: Callable[[str], int],
    shares: Sequence[Tensor] = (),
    prior: Prior | None = None,
    wanted: Wanted = lambda name: True,
) -> Params:
    """Return the mean of each value over the models that have its unit.

    side: for a tensor's name, which unit a weight between two units belongs to (0: the unit that it
    goes into, 1: the unit that it comes from). The weight counts where a client has that unit. If
    the client lacks the other unit, the weight counts as 0, because it is a part of that unit's
    vector. Classes are units that every client has.
    shares: weights towards the classes count by these instead of `weights` (`match_models`).
    prior: wanted tensors are posterior means, (m / sigma0 + sum w v / sigma) / (1 / sigma0 + sum w
    / sigma), instead of means. A value of which all weights are 0 is 0 without a prior.
    Sums are in float64, in the order of clients.
    """
    total: dict[str, Tensor] = {}
    mass: dict[str, Tensor] = {}
    for k, (model, order, weight) in enumerate(zip(wide.models, wide.orders, weights, strict=True)):
        for name, value in model.items():
            w: Any = weight
            if shares and name in HEADS:
                w = shares[k].to(value.device).view(-1, *[1] * (value.dim() - 1))
            present = holds(name, value, wide.units, order, side(name))
            total[name] = total.get(name, 0) + w * value.double()
            mass[name] = mass.get(name, 0) + w * present
    mean = Params()
    for name, value in total.items():
        weight_sum = mass[name]
        if prior and wanted(name):
            value = prior.mean(name) / prior.sigma0 + value / prior.sigma
            weight_sum = 1 / prior.sigma0 + weight_sum / prior.sigma
        quotient = value / torch.where(weight_sum > 0, weight_sum, 1.0)
        mean[name] = quotient.to(wide.models[0][name].dtype)
    return mean


def holds(name: str, value: Tensor, wide: Units, order: Order, side: int) -> Tensor:
    """Return 1 where a model has the units that a tensor's values belong to, else 0.

    The result broadcasts against the tensor.
    """
    axes = wide.axes.get(name, ())
    grouped = [dim for dim, axis in enumerate(axes) if any(s.group in order for s in axis)]
    dims = grouped[-1:] if side else [dim for dim in grouped if dim == 0]
    if not dims:  # it goes into classes, which all models have
        return torch.ones([1] * value.dim(), dtype=torch.float64, device=value.device)
    (dim,) = dims
    mask = torch.zeros(value.shape[dim], dtype=torch.float64, device=value.device)
    mask[torch.from_numpy(indices(axes[dim], order))] = 1
    return mask.view([-1 if i == dim else 1 for i in range(value.dim())])
