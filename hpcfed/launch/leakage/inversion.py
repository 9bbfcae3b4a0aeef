"""Gradient inversion: images whose gradient is the one that a client sent.

The server knows the weights w that the client received, the architecture, and the client's
optimiser, and gets the change of the weights, d = w' - w. It looks for images x and labels y with
which the same local steps give the same change, d(x, y):

    DLG      min over x, y of || (d(x, y) - d) / lr ||^2          Zhu, Liu and Han, NeurIPS 2019,
             by L-BFGS; y = softmax of free values                arXiv:1906.08935, eq. 4
    iDLG     the same over x alone; y from the bias gradient      Zhao, Mopuri and Bilen,
             of the head                                          arXiv:2001.02610, eq. 5
    invert   min over x of 1 - cos(d(x, y), d) + tv TV(x)         Geiping et al., NeurIPS 2020,
             by Adam on signs of gradients; y as for iDLG         arXiv:2003.14053, eq. 4

With one step of plain SGD, d / lr is minus the gradient. Several steps are simulated, and
differentiated through, as Geiping et al. do (section 6).

Deviations: L-BFGS has a line search (strong Wolfe) and float64, without which most starts diverge.
Labels of batches are inferred for all of its examples (`infer_labels`), as iDLG's are for one. TV
is the mean of absolute differences down plus that across, with weight 0.1, as in the authors' code
for CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

HEAD_BIAS = "head.bias"
ITERATIONS = {"dlg": 300, "idlg": 300, "invert": 1000}  # by default
RATE = 0.1  # of Adam
TV = 0.1  # weight of the total variation
MILESTONES = (3 / 8, 5 / 8, 7 / 8)  # of the iterations, after which the rate is a tenth
FLOOR = 1e-20  # value of DLG's objective at which the search ends


@dataclass(frozen=True)
class Turn:
    """The local steps of a client, as the server knows them.

    module: the client's architecture; its own weights are not used.
    received: weights and float buffers that the client received, by name.
    trained: names of the parameters that it trains and sends.
    steps: number of steps, each on the same batch.
    lr, momentum, weight_decay: of SGD.
    """

    module: nn.Module
    received: Mapping[str, Tensor]
    trained: tuple[str, ...]
    steps: int = 1
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the change of the trained parameters, as one vector, differentiable in x and y.

        x: prepared images [n, *shape].  y: classes [n], or probabilities [n, C].
        """
        start = [self.received[name].to(x.dtype).detach().requires_grad_() for name in self.trained]
        weights, moments, change = start, None, None
        for _ in range(self.steps):
            loss = F.cross_entropy(self._forward(weights, x), y)
            slopes = list(torch.autograd.grad(loss, weights, create_graph=True))
            if self.weight_decay:
                slopes = [g + self.weight_decay * w for g, w in zip(slopes, weights, strict=True)]
            if self.momentum and moments:
                slopes = [g + self.momentum * m for g, m in zip(slopes, moments, strict=True)]
            moments = slopes
            step = flatten(moments) * -self.lr
            change = step if change is None else change + step
            weights = [w - self.lr * m for w, m in zip(weights, moments, strict=True)]
        assert change is not None
        return change

    def _forward(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        values = dict(zip(self.trained, weights, strict=True))
        # copies: batch normalisation in training writes to its buffers
        fixed = {
            name: value.to(x.dtype).clone()
            for name, value in self.received.items()
            if name not in values
        }
        return functional_call(self.module, {**fixed, **values}, (x,))


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Return all values as one vector."""
    return torch.cat([value.reshape(-1) for value in tensors])


def infer_labels(bias_gradient: Tensor, n: int) -> Tensor:
    """Return the classes [n] of a batch, from the gradient of the head's bias, [C].

    Entry c is the mean over the batch of p_c - 1 for examples of class c, and of p_c for others,
    with the predicted probability p_c. For one example only that of its class is negative (iDLG).
    For more, a class is taken n times in turn, that of the lowest entry, which then rises by an
    n-th of the sum of all negative ones: exact while the model predicts all classes alike.
    A positive factor of the gradient, such as that of clipping, changes nothing.
    """
    rest, labels = bias_gradient.detach().double().clone(), []
    share = -rest.clamp(max=0).sum() / n
    for _ in range(n):
        label = int(rest.argmin())
        labels.append(label)
        rest[label] += share
    return torch.tensor(sorted(labels))


def total_variation(x: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, down plus across."""
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (
        x[..., :, 1:] - x[..., :, :-1]
    ).abs().mean()


def dlg(turn: Turn, sent: Tensor, x: Tensor, y: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Return images [n, *shape] and labels [n] found by L-BFGS.

    sent: the change that the server received, as a vector.
    x: images to start from, float64.
    y: classes [n], which are taken as they are (iDLG), or values [n, C] to start from (DLG).
    """
    x, free = x.clone().requires_grad_(), y.dim() == 2
    sent = sent.to(x.dtype)
    turn.module.to(x.dtype)
    variables = [x]
    if free:
        y = y.clone().requires_grad_()
        variables.append(y)
    search = torch.optim.LBFGS(
        variables,
        lr=1,
        max_iter=iterations,
        max_eval=2 * iterations,
        tolerance_grad=0,
        tolerance_change=FLOOR,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        search.zero_grad()
        change = turn.change(x, y.softmax(1) if free else y)
        value = ((change - sent) / turn.lr).square().sum()
        value.backward()
        return value

    search.step(objective)
    return x.detach(), y.detach().argmax(1) if free else y


def invert(
    turn: Turn,
    sent: Tensor,
    x: Tensor,
    y: Tensor,
    iterations: int,
    box: tuple[Tensor, Tensor],
    tv: float = TV,
) -> Tensor:
    """Return images [n, *shape] found by Adam on the signs of gradients.

    sent: the change that the server received, as a vector.
    x: images to start from.  y: classes [n].
    box: lowest and highest values of prepared pixels, in which the images stay.
    """
    x = x.clone().requires_grad_()
    adam = torch.optim.Adam([x], lr=RATE)
    steps = [int(share * iterations) for share in MILESTONES]
    schedule = torch.optim.lr_scheduler.MultiStepLR(adam, steps, gamma=0.1)
    for _ in range(iterations):
        value = 1 - F.cosine_similarity(turn.change(x, y), sent, dim=0)
        value = value + tv * total_variation(x)
        (slope,) = torch.autograd.grad(value, [x])
        x.grad = slope.sign()
        adam.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(*box)
    return x.detach()


def psnr(mse: float) -> float:
    """Return the peak signal-to-noise ratio in dB of pixels in 0..1: 10 log10(1 / MSE)."""
    return float("inf") if mse == 0 else -10 * float(np.log10(mse))


def match(originals: Tensor, results: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return which result stands for each original, [n], and their mean squared errors, [n].

    A gradient says nothing about the order of a batch: the sum of the errors is the least of all
    assignments.
    """
    errors = (
        (originals.flatten(1)[:, None] - results.flatten(1)[None]).double().square().mean(2)
    ).numpy()
    rows, columns = linear_sum_assignment(errors)
    return columns, errors[rows, columns]
