"""Units of two models matched: which unit of one does what in the other, and models whose units
are put in another order.

The order of hidden units says nothing: a model with its channels and hidden units in another order,
in all tensors that have them, is the same function. So before models are averaged by value their
units are put in an order in which they agree. Any model whose groups of units are known
(`widths.Units`) will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from hpcfed.core.params import Params
from hpcfed.models.widths import Units, indices

Order = dict[int, np.ndarray]  # by group: at each place the unit that comes there
Wanted = Callable[[str], bool]


def identity(units: Units) -> Order:
    """All units where they are."""
    return {group: np.arange(size) for group, size in units.sizes.items()}


def permute(params: Mapping[str, Tensor], units: Units, order: Order) -> Params:
    """The same model with its units in this order: the same function of its inputs, but for
    rounding.
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
    """What each unit of a group is: its values in all wanted tensors, [units, values], float64.

    dims: 0 for what comes into a unit (weights, bias, normalisation), 1 for what goes out of it to
    the layers that read it. A tensor that has the group in both counts in the first of them.
    """
    parts = []
    for name, axes in units.axes.items():
        if not wanted(name):
            continue
        for dim in dims[: len(axes)]:
            start, found = 0, False
            for g, size, repeat in axes[dim] if dim < len(axes) else ():
                if g == group:
                    piece = params[name].narrow(dim, start, size * repeat).movedim(dim, 0)
                    parts.append(piece.reshape(size, -1).double())
                    found = True
                start += size * repeat
            if found:
                break
    return torch.cat(parts, 1)


def assign(cost: Tensor) -> np.ndarray:
    """For each row the column that it gets, so that the sum of their costs is least.

    [n, m], n <= m.

    The Hungarian method: Kuhn, 1955; Crouse, IEEE Transactions on Aerospace and Electronic Systems
    52(4), 2016, as scipy has it.
    """
    from scipy.optimize import linear_sum_assignment  # here: it takes a moment to import

    return linear_sum_assignment(cost.cpu().numpy())[1]


def square_distances(a: Tensor, b: Tensor) -> Tensor:
    """Of each row of a to each row of b: [n, f], [m, f] -> [n, m]."""
    return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T


def square_distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor], wanted: Wanted) -> float:
    """Between two models over the wanted tensors, in float64."""
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
    """One pass over all groups, from the inputs to the classes: each is matched to the reference's
    while the others are in the order so far.
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
    """The order in which a model's units are those of the reference, as near as it finds one.

    First by what comes into each unit, layer by layer, as in FedMA (Wang et al., ICLR 2020,
    arXiv:2002.06440); then by all that a unit has, which never makes the distance longer, until
    nothing changes or after so many passes (Ainsworth et al., ICLR 2023, arXiv:2209.04836,
    algorithm 1). Begun from the order as it is, too, and the shorter distance counts. wanted:
    tensors that count.
    """
    still = identity(units)
    starts = [still, rematch(params, reference, units, still, wanted, (0,))]
    found = [settle(params, reference, units, order, wanted, passes) for order in starts]
    lengths = [square_distance(permute(params, units, o), reference, wanted) for o in found]
    return found[lengths.index(min(lengths))]


def settle(
    params: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    units: Units,
    order: Order,
    wanted: Wanted,
    passes: int,
) -> Order:
    """An order after passes by all that a unit has, until one changes nothing."""
    for _ in range(passes):
        new = rematch(params, reference, units, order, wanted, (0, 1))
        if all(np.array_equal(new[group], order[group]) for group in new):
            break
        order = new
    return order


def align(
    params: Mapping[str, Tensor], reference: Mapping[str, Tensor], units: Units, wanted: Wanted
) -> Params:
    """The model with its units in the reference's order."""
    return permute(params, units, match(params, reference, units, wanted))
