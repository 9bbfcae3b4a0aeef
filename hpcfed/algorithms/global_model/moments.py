"""Moments of a server that uses the mean change of the clients' models as a gradient."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from hpcfed import Params

Rule = Literal["adam", "yogi", "adagrad"]
Decay = Annotated[float, Field(ge=0, lt=1)]


def second_moment(v: Tensor, change: Tensor, rule: Rule, b2: float) -> Tensor:
    """Return the next second moment.

    Reddi et al., algorithm 2, the lines of v_t.
    """
    square = change.square()
    if rule == "adagrad":
        return v + square
    if rule == "adam":
        return b2 * v + (1 - b2) * square
    return v - (1 - b2) * square * torch.sign(v - square)


def direction(m: Tensor, v: Tensor, tau: float) -> Tensor:
    """Return m / (sqrt(v) + tau); 0 where that is 0 / 0."""
    below = v.sqrt() + tau
    return torch.where(below > 0, m / below, 0.0)


def step_with_momentum(
    x: Params, v: Params, mean: Params, beta: float, lr: float, nesterov: bool = False
) -> tuple[Params, Params]:
    """Return the server's model and momentum after a step along the mean change of what v has.

    v <- beta v + (mean - x); x <- x + lr v, or with nesterov x + lr (beta v + mean - x). The other
    tensors become the mean. A step of length 1 without momentum is the mean itself, bit for bit.
    """
    delta = mean.pick(v.__contains__) - x
    v = beta * v + delta
    if not beta and lr == 1:
        return mean, v
    step = beta * v + delta if nesterov else v
    return Params({**mean, **(x.pick(v.__contains__) + lr * step)}), v
