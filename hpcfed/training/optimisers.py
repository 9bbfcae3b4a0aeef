"""The local optimiser: its learning rate by the round, what it trains, and the moments that a client keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from hpcfed.client import Client
    from hpcfed.config.parts import Local
    from hpcfed.federation import Federation


def learning_rate(fed: Federation, t: int) -> float:
    """The learning rate of round t (0-based) by the job's schedule."""
    settings = fed.job.local
    if settings.schedule == "cosine":
        return settings.lr * 0.5 * (1 + math.cos(math.pi * t / fed.job.rounds))
    passed = sum(t >= m for m in settings.milestones) if settings.schedule == "step" else 0
    return settings.lr * settings.decay**passed


def make_optimiser(
    client: Client, settings: Local, lr: float, only: Callable[[str], bool] | None = None, phase: str = "train"
) -> torch.optim.Optimizer:
    """The job's optimiser over the flat parameters, with the moments of the last round where they are kept."""
    skeleton, decay = client.skeleton, settings.weight_decay
    leaf = skeleton.leaf(*skeleton.layout.stretch(only)) if only else skeleton.leaf()
    if settings.optimiser == "adam":
        optimiser = torch.optim.Adam(leaf, lr, betas=settings.betas, weight_decay=decay, fused=True)
    else:
        optimiser = torch.optim.SGD(leaf, lr, momentum=settings.momentum, weight_decay=decay, fused=True)
    if settings.keep_optimiser and (kept := client.memory.get(moments(phase))):
        optimiser.state[leaf[0]] = {name: v.clone() for name, v in kept.items()}
    return optimiser


def keep_moments(client: Client, optimiser: torch.optim.Optimizer, settings: Local, phase: str = "train") -> None:
    """With local.keep_optimiser, put the moments into the client's memory."""
    if settings.keep_optimiser:
        state = optimiser.state[optimiser.param_groups[0]["params"][0]]
        client.memory[moments(phase)] = {name: v for name, v in state.items() if isinstance(v, Tensor)}


def moments(phase: str) -> str:
    """The name of an optimiser's moments in a client's memory: each phase of a round has its own optimiser."""
    return "optimiser" if phase == "train" else f"optimiser of {phase}"


@contextmanager
def frozen(model: nn.Module, only: Callable[[str], bool] | None) -> Iterator[None]:
    """No gradients are computed for parameters that are not trained, inside the block."""
    rest = [p for name, p in model.named_parameters() if only is not None and not only(name)]
    for p in rest:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in rest:
            p.requires_grad_(True)
