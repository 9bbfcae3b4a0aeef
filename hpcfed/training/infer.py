"""Forward passes without training: predictions and representations of many examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hpcfed.training.batches import chunks

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.federation.federation import Federation

FEW = 3  # examples that a trial computes (`Federation.trial`)
FORWARD = 1 / 3  # of the work of a training step: the backward pass costs about two forward passes


@torch.no_grad()
def outputs(fed: Federation, of: Callable[[Tensor], Tensor], data: Shard) -> Tensor:
    """Return of(x) for all of these examples, [n, ...], in batches of evaluate.batch.

    of: takes prepared inputs [b, *shape]. The result is on the device. The caller sets the model to
    eval or train mode. A model that draws does so from a stream of the round.
    """
    with fed.scoped("outputs", fed.t):
        return in_chunks(fed, len(data), lambda rows: of(fed.prepare(data.batch(rows)[0])))


def in_chunks(fed: Federation, n: int, of: Callable[[Any], Tensor]) -> Tensor:
    """Return of(rows) for positions 0..n-1, [n, ...], in chunks of evaluate.batch.

    A trial has all public examples, because bytes follow from their number, but computes a few.
    """
    if fed.trial and n > FEW:
        output = of(np.arange(FEW))[:1]
        return output.repeat(n, *[1] * (output.dim() - 1))
    return torch.cat([of(rows) for rows in chunks(fed, n)])


def represent(fed: Federation, client: Client, data: Shard) -> Tensor:
    """Return the client's representations of these examples, [n, d], in eval mode.

    The pass is counted as the client's work.
    """
    fed.tallies[client.id].work += FORWARD * len(data)
    return outputs(fed, client.model.eval().body, data)


def logits(fed: Federation, client: Client, data: Shard) -> Tensor:
    """Return the client's logits of these examples, [n, C], in eval mode.

    The pass is counted as the client's work.
    """
    fed.tallies[client.id].work += FORWARD * len(data)
    return outputs(fed, client.model.eval(), data)


def mean_loss(fed: Federation, client: Client) -> float:
    """Return the mean loss of the client's model on all of its training examples, in eval mode.

    It is the loss of the data's task. The pass is counted as the client's work.
    """
    fed.tallies[client.id].work += FORWARD * client.n
    return loss_of(fed, client, client.model.eval(), client.train)


def loss_of(fed: Federation, client: Client, of: Callable[[Tensor], Tensor], data: Shard) -> float:
    """Return the mean loss of the logits of(x) on these examples of the client, as in `outputs`."""
    y = torch.from_numpy(data.labels).to(fed.device)
    return float(client.task.loss(outputs(fed, of, data), y))


def class_sums(z: Tensor, labels: np.ndarray, classes: int) -> tuple[Tensor, Tensor]:
    """Return the sum of the rows of each class, [C, d], float64, and the number of rows, [C].

    z: [n, ...].  labels: [n].
    """
    which = torch.from_numpy(labels).to(z.device)
    # for a product: scattered additions have no fixed order on a GPU
    member = F.one_hot(which, classes).double()
    return torch.tensordot(member, z.double(), dims=([0], [0])), member.sum(0).long()
