"""Matching of the units of two models, and models with their units in another order.

The order of hidden units has no meaning: a model with its channels and hidden units in another
order, in all tensors that have them, is the same function. So before models are averaged by value
their units are permuted until they agree. This works for any model whose groups of units are known
(`widths.Units`).
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from hpcfed import Params
from hpcfed.models.widths import Units, indices

Order = dict[int, np.ndarray]  # the new order of each group's units
Wanted = Callable[[str], bool]


def identity(units: Units) -> Order:
    """Return the order in which all units stay where they are."""
    return {group: np.arange(size) for group, size in units.sizes.items()}


def permute(params: Mapping[str, Tensor], units: Units, order: Order) -> Params:
    """Return the same model with its units in this order.

    As a function of its inputs it is the same except for rounding.
    """
    new = Params(params)
    for name, axes in units.axes.items():
        for dim, axis in enumerate(axes) if name in new else ():
            places = indices(axis, order)
            if (places[1:] < places[:-1]).any():
                at = torch.from_numpy(places).to(new[name].device)
                new[name] = new[name].index_select(dim, at)
    return new


def unit_vectors(
    params: Mapping[str, Tensor], units: Units, group: int, wanted: Wanted, dims: tuple[int, ...]
) -> Tensor:
    """Return the values of each unit of a group in all wanted tensors, [units, values], float64.

    dims: 0 for the tensors of a unit itself (weights, bias, normalisation), 1 for the weights with
    which later layers read it. A tensor that has the group in both counts in the first of them.
    """
    parts = []
    for name, axes in units.axes.items():
        if not wanted(name):
            continue
        for dim in dims[: len(axes)]:
            start, has_group = 0, False
            for g, size, repeat in axes[dim] if dim < len(axes) else ():
                if g == group:
                    piece = params[name].narrow(dim, start, size * repeat).movedim(dim, 0)
                    parts.append(piece.reshape(size, -1).double())
                    has_group = True
                start += size * repeat
            if has_group:
                break
    return torch.cat(parts, 1)


def assign(cost: Tensor) -> np.ndarray:
    """Return the column assigned to each row, so that the sum of their costs is smallest.

    cost: [n, m], n <= m.
    The Hungarian method: Kuhn, 1955; Crouse, IEEE Transactions on Aerospace and Electronic Systems
    52(4), 2016, as implemented in scipy.
    """
    from scipy.optimize import linear_sum_assignment  # here: it takes a moment to import

    return linear_sum_assignment(cost.cpu().numpy())[1]


def square_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return the squared distance of each row of a to each row of b: [n, f], [m, f] -> [n, m]."""
    return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T


def square_distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor], wanted: Wanted) -> float:
    """Return the squared distance of two models over the wanted tensors, computed in float64."""
    return sum(
        float((v.double() - b[name].double()).square().sum())
        for name, v in a.items()
        if wanted(name)
    )


def rematch(
    params: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    units: Units,
    order: Order,
    wanted: Wanted,
    dims: tuple[int, ...],
) -> Order:
    """Match all groups to the reference once, from the inputs to the classes; returns the order.

    Each group is matched while the others are in their current order.
    """
    order = dict(order)
    for group in units.sizes:
        model = permute(params, units, {**order, group: np.arange(units.sizes[group])})
        ours = unit_vectors(model, units, group, wanted, dims)
        theirs = unit_vectors(reference, units, group, wanted, dims)
        order[group] = assign(square_distances(theirs, ours))
    return order


def match(
    params: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    units: Units,
    wanted: Wanted,
    passes: int = 10,
) -> Order:
    """Return an order in which a model's units agree with those of the reference.

    Units are matched first by their own tensors, layer by layer, as in FedMA (Wang et al., ICLR
    2020, arXiv:2002.06440). Then they are matched by all values of a unit, which never increases
    the distance, until nothing changes or after `passes` passes (Ainsworth et al., ICLR 2023,
    arXiv:2209.04836, algorithm 1). The second step is also started from the present order, and the
    result with the shorter distance counts.

    wanted: whether a tensor counts, by name.
    """
    still = identity(units)
    starts = [still, rematch(params, reference, units, still, wanted, (0,))]
    orders = [settle(params, reference, units, order, wanted, passes) for order in starts]
    lengths = [square_distance(permute(params, units, o), reference, wanted) for o in orders]
    return orders[lengths.index(min(lengths))]


def settle(
    params: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    units: Units,
    order: Order,
    wanted: Wanted,
    passes: int,
) -> Order:
    """Return the order after repeated passes over all values of units, until nothing changes."""
    for _ in range(passes):
        new = rematch(params, reference, units, order, wanted, (0, 1))
        if all(np.array_equal(new[group], order[group]) for group in new):
            break
        order = new
    return order


def align(
    params: Mapping[str, Tensor], reference: Mapping[str, Tensor], units: Units, wanted: Wanted
) -> Params:
    """Return the model with its units in the reference's order."""
    return permute(params, units, match(params, reference, units, wanted))
