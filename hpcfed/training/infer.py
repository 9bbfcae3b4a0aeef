"""Forward passes without training: predictions and representations of many examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hpcfed.training.batches import chunks

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.federation.federation import Federation

FORWARD = 1 / 3  # of the work of a training step: the backward pass costs about two forward passes


@torch.no_grad()
def outputs(fed: Federation, of: Callable[[Tensor], Tensor], data: Shard) -> Tensor:
    """of(x) for all of these examples, in batches of evaluate.batch: [n, ...], on the device.

    of: takes prepared inputs [b, *shape]. Whoever calls puts the model into eval or train mode.
    """
    return torch.cat([of(fed.prepare(data.batch(rows)[0])) for rows in chunks(fed, len(data))])


def represent(fed: Federation, client: Client, data: Shard) -> Tensor:
    """The client's representations of these examples, [n, d], in eval mode; counted as its work."""
    fed.tallies[client.id].work += FORWARD * len(data)
    return outputs(fed, client.model.eval().body, data)


def logits(fed: Federation, client: Client, data: Shard) -> Tensor:
    """The client's logits of these examples, [n, C], in eval mode; counted as its work."""
    fed.tallies[client.id].work += FORWARD * len(data)
    return outputs(fed, client.model.eval(), data)


def class_sums(z: Tensor, labels: np.ndarray, classes: int) -> tuple[Tensor, Tensor]:
    """Sum of the rows of each class, [C, d], float64, and how many there are, [C].

    z: [n, ...].  labels: [n].
    """
    which = torch.from_numpy(labels).to(z.device)
    member = F.one_hot(
        which, classes
    ).double()  # a product, for scattered additions have no fixed order on a GPU
    return torch.tensordot(member, z.double(), dims=([0], [0])), member.sum(0).long()
