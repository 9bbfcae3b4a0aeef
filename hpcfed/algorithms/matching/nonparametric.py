"""Matching of the units of several models to units of one wider model, for PFNM and FedMA.

The wider model has as many units as the beta process finds.

Yurochkin et al. (Bayesian Nonparametric Federated Learning of Neural Networks), ICML 2019,
arXiv:1905.12022. A unit is a vector v. Units of the wide model have the prior N(0, s0^2 I); a
client's unit is drawn around one of them with variance s^2. Client by client, the Hungarian method
assigns units so that the posterior is largest. The gain of a unit is,

- if it is matched to unit i of the wide model, which has n_i vectors of the other clients with sum
  S_i,
  |S_i / s^2 + v / s^2|^2 / (1/s0^2 + n_i/s^2 + 1/s^2) - |S_i / s^2|^2 / (1/s0^2 + n_i/s^2)
  + 2 log(n_i / (J - n_i)),
- if it becomes the i-th new unit: |v / s^2|^2 / (1/s0^2 + 1/s^2) - 2 log i + 2 log(gamma / J).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfed.core.params import Params
from hpcfed.models.matching import Order, Wanted, unit_vectors
from hpcfed.models.trace import FIXED, Axis
from hpcfed.models.widths import Units

Seen = Callable[[str], bool]


@dataclass(frozen=True)
class Prior:
    """Prior of the units of the wide model.

    sigma0: s0.  sigma: s.  gamma: mass of the beta process; a larger mass gives more units.
    count_limit: upper bound of n_i in its logarithm; 0: no bound.  count_weight: factor of that
    logarithm.  most: largest number of units of the wide layer; 0: any number.
    """

    sigma0: float = 1.0
    sigma: float = 1.0
    gamma: float = 1.0
    count_limit: int = 0
    count_weight: float = 2.0
    most: int = 0


class Wide(NamedTuple):
    """The result of matching several models.

    models: each model in the places of the wide model, 0 where it has no unit.  orders: for each
    model, by group, the place of each of its units.  units: the wide model's groups.
    """

    models: list[Params]
    orders: list[Order]
    units: Units


def gains(v: np.ndarray, total: np.ndarray, counts: np.ndarray, J: int, prior: Prior) -> np.ndarray:
    """Return the gain of matching a client's units to the wide model's units, and to new ones.

    v: [L, f], the client's units.  total: [I, f], for each unit of the wide model the sum of the
    other clients' vectors.  counts: [I], the number of these vectors, at least 1.  J: number of
    clients.
    Returns [L, I + new]. There are L new units, or as many as `most` allows, but always enough that
    every unit has a place.
    """
    L, taken = len(v), len(counts)
    own, before = 1 / prior.sigma**2, 1 / prior.sigma0**2
    norms, lengths = np.square(v).sum(1), np.square(total).sum(1)
    together = norms[:, None] + 2 * v @ total.T + lengths  # |v + S_i|^2
    known = own**2 * (together / (before + (counts + 1) * own) - lengths / (before + counts * own))
    seen = np.minimum(counts, prior.count_limit) if prior.count_limit else counts
    known = known + prior.count_weight * np.log(seen / (J - seen))
    free = min(L, max(prior.most - taken, L - taken, 0)) if prior.most else L
    first = own**2 * norms / (before + own) + 2 * np.log(prior.gamma / J)
    return np.hstack([known, first[:, None] - 2 * np.log(np.arange(1, free + 1))])


def match_units(vectors: Sequence[np.ndarray], prior: Prior, sweeps: int) -> list[np.ndarray]:
    """Return for each client the units of the wide model that its own units are matched to, [L_k].

    vectors: the units of each client, [L_k, f], float64.

    First each client is added to those before it; the first client's units are taken as they are.
    Then each client is taken out and added again, in at most `sweeps` sweeps, until a sweep changes
    nothing. The units of the wide model that most clients have come first, the others in the order
    of clients.
    """
    from scipy.optimize import linear_sum_assignment  # here: it takes a moment to import

    J = len(vectors)
    found: list[np.ndarray | None] = [np.arange(len(vectors[0])), *[None] * (J - 1)]
    for sweep in range(sweeps + 1):
        before = list(found)
        for k in range(0 if sweep else 1, J):
            if J == 1:
                break
            others = [a if j != k else None for j, a in enumerate(found)]
            number, others = drop_empty(others)
            total, counts = np.zeros((number, vectors[k].shape[1])), np.zeros(number)
            for v, at in zip(vectors, others, strict=True):
                if at is not None:
                    total[at] += v  # a client has a unit at most once
                    counts[at] += 1
            gain = gains(vectors[k], total, counts, J, prior)
            others[k] = linear_sum_assignment(gain, maximize=True)[1]
            _, found = drop_empty(others)
        if sweep and same(before, found):
            break
    return by_popularity([at for at in found if at is not None])


def same(a: Sequence[np.ndarray | None], b: Sequence[np.ndarray | None]) -> bool:
    """Return whether two assignments are equal for all clients."""
    return all(
        x is not None and y is not None and np.array_equal(x, y) for x, y in zip(a, b, strict=True)
    )


def drop_empty(found: Sequence[np.ndarray | None]) -> tuple[int, list[np.ndarray | None]]:
    """Drop the units that no client has; return their number and the renumbered assignments.

    The number is that of the remaining units, which keep their order.
    """
    used = np.unique(np.concatenate([at for at in found if at is not None]))
    return len(used), [None if at is None else np.searchsorted(used, at) for at in found]


def by_popularity(found: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the same assignments, renumbered so that units of more clients come first."""
    counts = np.bincount(np.concatenate(found))
    place = np.argsort(np.argsort(-counts, kind="stable"), kind="stable")
    return [place[at] for at in found]


def comparable(units: Units, group: int, done: Collection[int]) -> Seen:
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
) -> Wide:
    """Match models of one architecture group by group.

    units: the wide model's groups, as far as they are matched.  plan: the groups in the order in
    which they are matched.  wanted: tensors that count, among the `comparable` ones.  done: for
    each model the groups that are matched already; the models are then in the places of the wide
    model.
    """
    now, spread = units, [Params(model) for model in models]
    orders: list[Order] = [dict(order) for order in done] or [{} for _ in models]
    for group in plan:
        seen = comparable(units, group, orders[0])
        counts = lambda name, seen=seen: wanted(name) and seen(name)  # noqa: E731
        vectors = [unit_vectors(m, now, group, counts, (0, 1)).cpu().numpy() for m in spread]
        found = match_units(vectors, prior, sweeps)
        wide = widen(now, group, 1 + max(int(at.max()) for at in found))
        spread = [
            place(model, now, wide, {group: at}) for model, at in zip(spread, found, strict=True)
        ]
        for order, at in zip(orders, found, strict=True):
            order[group] = at
        now = wide
    return Wide(spread, orders, now)


def widen(units: Units, group: int, size: int) -> Units:
    """Return the groups of the same model in which this group has `size` units."""
    axes = {
        name: tuple(
            tuple(s._replace(size=size) if s.group == group else s for s in axis) for axis in each
        )
        for name, each in units.axes.items()
    }
    return Units({**units.sizes, group: size}, axes)


def places(narrow: Axis, wide: Axis, order: Order) -> np.ndarray:
    """Return the places of a narrow model's dimension in the wide model's dimension."""
    found, start = [], 0
    for (group, size, repeat), other in zip(narrow, wide, strict=True):
        units = np.arange(size) if group == FIXED or group not in order else order[group]
        found.append((start + units[:, None] * repeat + np.arange(repeat)).reshape(-1))
        start += other.size * repeat
    return np.concatenate(found)


def crossings(
    model: Mapping[str, Any], narrow: Units, wide: Units, order: Order
) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """Yield each tensor that has units, and the places of the narrow model's values in it."""
    for name in model:
        at = [
            torch.from_numpy(places(a, b, order))
            for a, b in zip(narrow.axes.get(name, ()), wide.axes.get(name, ()), strict=True)
        ]
        if any(s.group in order for axis in wide.axes.get(name, ()) for s in axis):
            yield name, torch.meshgrid(*at, indexing="ij")


def place(model: Mapping[str, Tensor], narrow: Units, wide: Units, order: Order) -> Params:
    """Return a model in the places of a wider one, 0 elsewhere."""
    new = Params(model)
    for name, at in crossings(model, narrow, wide, order):
        shape = [sum(s.size * s.repeat for s in axis) for axis in wide.axes[name]]
        value = model[name]
        new[name] = value.new_zeros(*shape, *value.shape[len(shape) :])
        new[name][tuple(i.to(value.device) for i in at)] = value
    return new


def take(model: Mapping[str, Tensor], wide: Units, narrow: Units, order: Order) -> Params:
    """Return the narrow model that has these units of a wide one: the inverse of `place`."""
    new = Params(model)
    for name, at in crossings(model, narrow, wide, order):
        new[name] = model[name][tuple(i.to(model[name].device) for i in at)]
    return new


def fuse(wide: Wide, narrow: Units, weights: Sequence[float], side: int) -> tuple[Params, Params]:
    """Return the mean of each value over the models that have its unit, and their number.

    side: a weight between two units counts where a client has the unit of that side (0: the unit
    that it goes into, 1: the unit that it comes from). Where the client lacks the other unit, the
    weight counts as 0, because it is a part of that unit's vector. Sums are in float64, in the
    order of clients. The numbers broadcast against the values.
    """
    total: dict[str, Tensor] = {}
    mass: dict[str, Tensor] = {}
    number: dict[str, Tensor] = {}
    for model, order, weight in zip(wide.models, wide.orders, weights, strict=True):
        for name, value in model.items():
            there = holds(name, value, wide.units, narrow, order, side)
            total[name] = total.get(name, 0) + weight * value.double()
            mass[name] = mass.get(name, 0) + weight * there
            number[name] = number.get(name, 0) + there
    mean = Params({n: (v / mass[n]).to(wide.models[0][n].dtype) for n, v in total.items()})
    return mean, Params(number)


def holds(name: str, value: Tensor, wide: Units, narrow: Units, order: Order, side: int) -> Tensor:
    """Return 1 where a model has the units that a tensor's values count for, else 0.

    The result broadcasts against the tensor.
    """
    axes = wide.axes.get(name, ())
    grouped = [dim for dim, axis in enumerate(axes) if any(s.group in order for s in axis)]
    if not grouped:
        return torch.ones([1] * value.dim(), dtype=torch.float64, device=value.device)
    dim = grouped[-1] if side else grouped[0]
    there = torch.zeros(value.shape[dim], dtype=torch.float64, device=value.device)
    there[torch.from_numpy(places(narrow.axes[name][dim], axes[dim], order))] = 1
    return there.view([-1 if i == dim else 1 for i in range(value.dim())])
