"""The one local training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed import rng
from hpcfed.data.augment import views as augmented
from hpcfed.errors import DivergedError

if TYPE_CHECKING:
    from hpcfed.client import Client
    from hpcfed.config.parts import Local
    from hpcfed.federation import Federation

Loss = Callable[[nn.Module, Any, Tensor], Tensor]


def sgd(
    fed: Federation, client: Client, t: int, loss: Loss, views: int = 1, epochs: int | None = None, phase: str = "train"
) -> None:
    """Train the client's model on its data by the job's optimiser, batch size and epochs or steps.

    loss: (model, x, y) -> scalar; x is [b, *shape], or with views > 1 a list of that many augmented copies.
    epochs: instead of the job's.  phase: names the random streams; another phase of the same round needs
    another name.  Raises DivergedError if a loss is nan or infinite, naming round, epoch and batch.
    """
    start, settings = perf_counter(), fed.job.local
    skeleton, losses = client.skeleton, []
    optimiser = make_optimiser(client, settings, learning_rate(fed, t))
    order = rng.stream(fed.seed, phase, "batches", t, client.id)
    counted = settings.model_copy(update={"steps": None}) if epochs else settings
    plan = list(batches(client.n, counted, fed.work(client, epochs), order))
    draws = rng.torch_stream(fed.seed, phase, "augment", t, client.id, device=fed.device)
    skeleton.model.train()
    with rng.scoped(fed.seed, phase, "dropout", t, client.id, device=fed.device):
        for rows in plan:
            x, y = client.train.batch(rows)
            value = loss(skeleton.model, inputs(fed, x, views, draws), y)
            skeleton.zero_grad()
            value.backward()
            optimiser.step()
            losses.append(value.detach())
    keep_moments(client, optimiser, settings)
    examples = [len(rows) for rows in plan]
    fed.note(client, checked(fed, client, t, losses, examples), examples, perf_counter() - start)


def gradient(fed: Federation, client: Client, t: int, loss: Loss) -> None:
    """Leave the mean gradient over all of the client's data in its model; one pass in the job's batches."""
    start, skeleton, losses = perf_counter(), client.skeleton, []
    plan = np.array_split(np.arange(client.n), math.ceil(client.n / fed.job.local.batch))
    draws = rng.torch_stream(fed.seed, "train", "augment", t, client.id, device=fed.device)
    skeleton.model.train()
    skeleton.zero_grad()
    with rng.scoped(fed.seed, "train", "dropout", t, client.id, device=fed.device):
        for rows in plan:
            x, y = client.train.batch(rows)
            value = loss(skeleton.model, inputs(fed, x, 1, draws), y)
            (value * (len(rows) / client.n)).backward()
            losses.append(value.detach())
    examples = [len(rows) for rows in plan]
    fed.note(client, checked(fed, client, t, losses, examples), examples, perf_counter() - start)


def inputs(fed: Federation, x: Tensor, views: int, draws: torch.Generator) -> Tensor | list[Tensor]:
    """What the loss gets: one augmented, normalised copy of the batch, or a list of several."""
    policy = fed.job.local.augment
    if policy == "auto":
        policy = "simclr" if views > 1 else "none"
    copies = augmented(x, views, policy, fed.mean_pixel, fed.std_pixel, draws)
    return copies if views > 1 else copies[0]


def batches(n: int, settings: Local, amount: int, g: np.random.Generator) -> Iterator[np.ndarray]:
    """Rows of each batch: `amount` epochs, or with local.steps that many batches, each epoch in a new order."""
    done = 0
    while done < amount:
        order = g.permutation(n)
        for start in range(0, n, settings.batch):
            yield order[start : start + settings.batch]
            done += settings.steps is not None
            if settings.steps is not None and done == amount:
                return
        done += settings.steps is None


def learning_rate(fed: Federation, t: int) -> float:
    """The learning rate of round t (0-based) by the job's schedule."""
    settings = fed.job.local
    if settings.schedule == "cosine":
        return settings.lr * 0.5 * (1 + math.cos(math.pi * t / fed.job.rounds))
    passed = sum(t >= m for m in settings.milestones) if settings.schedule == "step" else 0
    return settings.lr * settings.decay**passed


def make_optimiser(client: Client, settings: Local, lr: float) -> torch.optim.Optimizer:
    """The job's optimiser over the flat parameters, with the moments of the last round where they are kept."""
    leaf, decay = client.skeleton.leaf(), settings.weight_decay
    if settings.optimiser == "adam":
        optimiser = torch.optim.Adam(leaf, lr, betas=settings.betas, weight_decay=decay, fused=True)
    else:
        optimiser = torch.optim.SGD(leaf, lr, momentum=settings.momentum, weight_decay=decay, fused=True)
    if settings.keep_optimiser and "optimiser" in client.memory:
        optimiser.state[leaf[0]] = {name: v.clone() for name, v in client.memory["optimiser"].items()}
    return optimiser


def keep_moments(client: Client, optimiser: torch.optim.Optimizer, settings: Local) -> None:
    """With local.keep_optimiser, put the moments into the client's memory."""
    if settings.keep_optimiser:
        state = optimiser.state[optimiser.param_groups[0]["params"][0]]
        client.memory["optimiser"] = {name: v for name, v in state.items() if isinstance(v, Tensor)}


def checked(fed: Federation, client: Client, t: int, losses: list[Tensor], examples: list[int]) -> np.ndarray:
    """The losses on the host, one transfer for all. DivergedError if one of them, or a weight, is not finite."""
    values = torch.stack(losses).double().cpu().numpy() if losses else np.zeros(0)
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad) and not torch.isfinite(client.skeleton.flat).all():
        raise DivergedError(
            f"{fed.where(client)}: its weights are nan or infinite after round {t + 1} (lr {learning_rate(fed, t):g}); "
            f"{fed.last_checkpoint}\n  a smaller local.lr, or other data, may help"
        )
    if len(bad):
        seen = sum(examples[: bad[0]])
        epoch, per_epoch = seen // client.n, math.ceil(client.n / fed.job.local.batch)
        raise DivergedError(
            f"{fed.where(client)}: the loss is {values[bad[0]]} in round {t + 1}, epoch {epoch + 1}, "
            f"batch {bad[0] - epoch * per_epoch + 1} (lr {learning_rate(fed, t):g}); {fed.last_checkpoint}\n"
            "  a smaller local.lr, or other data, may help"
        )
    return values
