"""Batches of training: their examples, and the inputs of the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcfed.clients.client import Paired, Shard
from hpcfed.core import rng
from hpcfed.core.inputs import pieces
from hpcfed.data.augment import views as augmented
from hpcfed.data.sampling import even_parts

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation

# data sets so small that every loss profits; these images must not be flipped
SUITED = {"digits": "affine"}
AHEAD = 1 << 18  # values that are gathered and normalised at once: 1 MiB fits into the cache
# values of augmented views that are made at once, by type of device; 0: those of one batch. A GPU
# runs these operations faster than Python starts them; on a CPU a batch stays in the cache
VIEWS_AHEAD = {"cpu": 0, "cuda": 1 << 22}

Batch = tuple[np.ndarray, Any, Any]  # rows of the shard, inputs, targets


def chunks(fed: Federation, n: int) -> list[np.ndarray]:
    """Return positions 0..n-1 in parts of at most evaluate.batch examples."""
    return even_parts(n, fed.job.evaluate.batch) or [np.arange(0)]


def batches(
    n: int,
    size: int,
    amount: int,
    in_steps: bool,
    g: np.random.Generator,
    shares: np.ndarray | None = None,
) -> Iterator[np.ndarray]:
    """Yield the rows of each batch, each epoch in a new order.

    amount: number of epochs, or of steps if in_steps.  size: examples in a batch.
    shares: [n], probability of each example in each of the n draws, with replacement, of an epoch;
    None: each example once.
    """
    done = 0
    while done < amount:
        order = g.permutation(n) if shares is None else g.choice(n, n, p=shares)
        for start in range(0, n, size):
            yield order[start : start + size]
            done += in_steps
            if in_steps and done == amount:
                return
        done += not in_steps


def plan_batches(
    fed: Federation,
    client: Client,
    t: int,
    data: Shard,
    size: int,
    amount: int,
    in_steps: bool,
    phase: str = "train",
    poisson: bool = False,
) -> list[np.ndarray]:
    """Return the rows of each batch of a client's local training on these examples.

    The order is drawn from the client's own stream.
    poisson: whether batches are Poisson samples (`poisson_batches`).
    """
    g = rng.stream(fed.seed, phase, "batches", t, client.id)
    if poisson:
        return list(poisson_batches(len(data), size, amount, in_steps, g))
    shares = draw_shares(fed, client, data)
    return list(batches(len(data), size, amount, in_steps, g, shares))


def poisson_batches(
    n: int, size: int, amount: int, in_steps: bool, g: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield the rows of Poisson batches, as many as `batches` yields.

    Each example is in a batch with probability size / n, independently; so a batch may be empty.
    """
    for _ in range(amount if in_steps else amount * math.ceil(n / size)):
        yield np.flatnonzero(g.random(n) < size / n)


def draw_shares(fed: Federation, client: Client, data: Shard) -> np.ndarray | None:
    """Return the probability with which each example is drawn, [n], with local.balanced_batches.

    All classes of the client have the same. None: each example is drawn once in an epoch, as it is
    always with other examples than the client's own.
    """
    if not (fed.job.local.balanced_batches and data.rows is client.train.rows):
        return None
    _, classes, counts = np.unique(data.labels, return_inverse=True, return_counts=True)
    return 1 / (len(counts) * counts[classes])


def policy(job: Job, views: int) -> str:
    """Return the job's augmentation for a loss of one or several views."""
    wanted = job.local.augment
    if wanted != "auto":
        return wanted
    return SUITED.get(job.data.name) or ("simclr" if views > 1 else "none")


def inputs(fed: Federation, x: Any, views: int, draws: torch.Generator) -> Any:
    """Return the inputs of the loss for a batch: normalised, and augmented if the job says so.

    With views = 1 the result is one copy of the batch, else a list of copies. For several
    modalities it is a dict of prepared tensors; they have no views (`engine.setup` refuses that).
    """
    how = policy(fed.job, views)
    if how == "none" and views == 1:
        return fed.prepare(x)
    copies = augmented(x, views, how, fed.data.mean, fed.data.std, draws)
    return copies if views > 1 else copies[0]


def inputs_of_batches(
    fed: Federation, x: Any, views: int, draws: torch.Generator, sizes: list[int]
) -> list[Any]:
    """Return what `inputs` returns for each of the batches that follow one another in x."""
    how = policy(fed.job, views)
    copies = augmented(x, views, how, fed.data.mean, fed.data.std, draws, sizes)
    by_batch = list(zip(*(copy.split(sizes) for copy in copies), strict=True))
    return [list(batch) if views > 1 else batch[0] for batch in by_batch]


def prepare_batches(
    fed: Federation,
    data: Shard,
    plan: Sequence[np.ndarray],
    views: int,
    draws: Callable[[], torch.Generator] | None,
) -> Iterator[Batch]:
    """Yield the batches of a plan.

    Several batches are made at once where that is faster, with the same values.
    """
    plain = views == 1 and policy(fed.job, views) == "none"
    ahead = AHEAD if plain else VIEWS_AHEAD[fed.device.type]
    at_once = plan and not isinstance(data, Paired)
    several = max(1, ahead // max(1, views * len(plan[0]) * data.values)) if at_once else 1
    if several == 1:
        for rows, (x, y) in zip(plan, data.batches(plan), strict=True):
            yield rows, fed.prepare(x) if plain else inputs(fed, x, views, draws()), y  # type: ignore[misc]
        return
    for i in range(0, len(plan), several):
        parts = plan[i : i + several]
        x, y = data.batch(np.concatenate(parts))
        sizes = [len(rows) for rows in parts]
        prepared = (
            pieces(fed.prepare(x), sizes)
            if plain
            else inputs_of_batches(fed, x, views, draws(), sizes)  # type: ignore[misc]
        )
        yield from zip(parts, prepared, y.split(sizes), strict=True)
