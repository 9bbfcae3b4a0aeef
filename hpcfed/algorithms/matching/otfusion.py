"""OT fusion: the server aligns the clients' units by optimal transport and averages the models.

Singh and Jaggi (Model Fusion via Optimal Transport), NeurIPS 2020, arXiv:1910.05653, algorithm 1
with the alignment by weights.

The reference is the model of the first client (reference = "first"). u_i are the incoming weights
of a unit of a model, with the layers below already aligned, and v_j those of the reference. The
marginals of T are uniform. The aligned weights are n T' W T_below n (n units in a layer), T_k(w_k)
for all layers. For layers of one size an exact plan is a permutation, which scipy's assignment
finds. With regularise > 0 the plan is that of Sinkhorn's algorithm, and units are mixed.

Objective: F_k(w)
Server: T <- argmin_T sum_ij T_ij ||u_i - v_j||; w <- mean_k T_k(w_k)
Round:
1. The server sends its model to the cohort.
2. Each client trains it and sends it.
3. The server aligns each model's units to those of a reference, from the inputs up.
4. Each layer's plan T has the least transport cost between the units' incoming weights.
5. The mean of the aligned models is the new model.

Deviations: clients have one architecture, while the paper also fuses models of several widths.
Alignment by activations, for which the server would need data, is not implemented. Biases and
normalisation belong to their units (the paper's models have none). The order of the classes is
never changed, where the public code transports the last layer's outputs too unless told otherwise.
The paper fuses once; here every round does.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Params
from hpcfed.algorithms.matching import permutation
from hpcfed.algorithms.matching.matched import Matched
from hpcfed.models.trace import FIXED
from hpcfed.models.widths import Units

SWEEPS = 1000  # upper limit for Sinkhorn's algorithm
CLOSE = 1e-9  # largest relative error of the marginals at which it stops


class OTFusion(Matched):
    """For a single client the result is that client's model, as in FedAvg."""

    guide = Guide(
        data="alike to different labels",
        sent="all weights",
        won="one round: above plain averaging",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: 1, as in the paper, or its number of training examples."""
    reference: Literal["first", "server"] = "first"
    """Models are aligned to that of the round's first client, or to the server's model of the
    previous round.
    """
    regularise: NonNegativeFloat = 0.0
    """Weight of the plan's entropy, as a share of the mean cost; 0: exact."""

    def init(self, fed: Federation) -> Params:
        self.units(fed)
        return super().init(fed)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Mean:
        own_start = self.start == "own" and t == 0
        return super().local(fed, client, fed.initial(k=client.id) if own_start else state, t)

    def aggregate(self, fed: Federation, state: Params, uploads: list[tuple[int, Mean]]) -> Params:
        sent, reference = dict(uploads), state
        if self.reference == "first":
            here = [k for k, _ in fed.each(dict.fromkeys(sent, 1))]
            firsts = {k: sent[k].terms[0].value for k in here[:1] if k in sent}
            for _, value in fed.each(firsts):
                reference = value
        units, counts = self.units(fed), self.counts(fed)

        def aligned(upload: Mean) -> Mean:
            (part,) = upload.terms
            model = align(part.value, reference, units, counts, self.regularise)
            return Mean.of(model, part.weight)

        return fed.mean(((k, aligned(upload)) for k, upload in sent.items()), keep=state)


def align(
    model: Params,
    reference: Params,
    units: Units,
    counts: Callable[[str], bool],
    regularise: float = 0.0,
) -> Params:
    """Return the model with its units moved onto those of the reference.

    Groups are aligned one by one, from the inputs up.
    counts: tensors by which units are compared.
    """
    aligned = model
    for group in units.sizes:
        ours, theirs = (
            permutation.unit_vectors(p, units, group, counts, (0,)) for p in (aligned, reference)
        )
        cost = torch.cdist(theirs, ours, compute_mode="donot_use_mm_for_euclid_dist")
        if regularise:
            aligned = mix(aligned, units, group, sinkhorn(cost, regularise * float(cost.mean())))
        else:
            order = permutation.identity(units) | {group: permutation.assign(cost)}
            aligned = permutation.permute(aligned, units, order)
    return aligned


def sinkhorn(cost: Tensor, epsilon: float) -> Tensor:
    """Return the plan of least cost with an entropy term; its rows sum to 1.

    cost: [n, m], float64.  epsilon: weight of the entropy. The plan has uniform marginals, and is
    multiplied by its number of rows.

    Cuturi, NeurIPS 2013, arXiv:1306.0895, in logarithms.
    """
    n, m = cost.shape
    if not epsilon:  # all costs are 0: all units are alike
        return torch.full_like(cost, 1 / m)
    kernel = -cost / epsilon
    f, g = cost.new_zeros(n, 1), cost.new_zeros(1, m)
    for _ in range(SWEEPS):
        f = -(kernel + g).logsumexp(1, keepdim=True)
        g = np.log(n / m) - (kernel + f).logsumexp(0, keepdim=True)
        plan = (kernel + f + g).exp()
        if float((plan.sum(1) - 1).abs().max()) < CLOSE:
            break
    return plan / plan.sum(1, keepdim=True)


def mix(model: Params, units: Units, group: int, plan: Tensor) -> Params:
    """Return the model in which the units of a group are mixtures of the old ones.

    plan: [n, n], rows of sum 1. Where the group fills a part of a dimension, only that part is
    mixed.
    """
    new = Params(model)
    for name, axes in units.axes.items():
        for dim, axis in enumerate(axes) if name in new else ():
            start, parts, value = 0, [], new[name]
            for g, size, repeat in axis:
                piece = value.narrow(dim, start, size * repeat)
                if g == group and g != FIXED:
                    rows = piece.movedim(dim, 0)
                    mixed = plan @ rows.reshape(size, -1).to(plan.dtype)
                    piece = mixed.reshape(rows.shape).movedim(0, dim).to(value.dtype)
                parts.append(piece)
                start += size * repeat
            if any(s.group == group for s in axis):
                new[name] = torch.cat(parts, dim)
    return new
