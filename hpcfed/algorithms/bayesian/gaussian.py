"""Gaussian distributions of each weight, N(mu, softplus(rho)^2), as in pFedBayes."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpcfed import Client, Federation, Params
from hpcfed.models.flat import Layout
from hpcfed.training.losses import gaussian_divergence
from hpcfed.training.optimisers import Optimiser, moments

RHO = "rho/"  # prefix of parameters' names: softplus of these values is the standard deviation


def pull(
    zeta: float, n: int, q: tuple[Tensor, Tensor], p: tuple[Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return (zeta / n) KL(q || p) and its gradients with respect to the means and rhos of q and p.

    q, p: (mu, rho), [values] each.
    """
    leaves = [v.detach().clone().requires_grad_() for v in (*q, *p)]
    mu, rho, common, deviation = leaves
    each = gaussian_divergence(mu, F.softplus(rho), common, F.softplus(deviation))
    value = zeta / n * each.sum()
    return value.detach(), torch.autograd.grad(value, leaves)


def means(state: Params) -> Params:
    """Return the network of the means, with its buffers."""
    return state.pick(lambda name: not name.startswith(RHO))


def flatten(layout: Layout, values: Params) -> Tensor:
    """Copy the parameters of a model into one new vector, [gradient_size], by its layout."""
    vector = next(iter(values.values())).new_zeros(layout.gradient_size)
    for name, view in layout.views(vector).items():
        view.copy_(values[name])
    return vector


def follower(fed: Federation, client: Client, lr: float, phase: str, *vectors: Tensor) -> Optimiser:
    """Return the job's optimiser, without weight decay, for vectors that do not belong to a model.

    Where the job keeps optimisers, it starts with its moments of the client's last round.
    """
    plain = fed.job.local.model_copy(update={"weight_decay": 0.0})
    previous = client.memory.get(moments(phase)) if plain.keep_optimiser else None
    named = {str(i): vector for i, vector in enumerate(vectors)}
    stand_in: Any = SimpleNamespace(  # what an optimiser uses of a model
        flat=vectors[0], layout=SimpleNamespace(params=tuple(named)), view=named.__getitem__
    )
    return Optimiser(stand_in, plain, lr, None, previous)
