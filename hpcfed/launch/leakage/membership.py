"""Membership inference by a threshold on the loss: was an example in a client's training data?

Yeom et al., CSF 2018, arXiv:1709.01604: examples that a model was trained on have lower losses.
The area under the ROC curve is the probability that a member's loss is below that of another
example, ties counted half; 0.5 is guessing. The advantage is the largest difference of the true and
the false positive rate over all thresholds. The true positive rate at a small false positive rate
says whether some members can be told with confidence (Carlini et al., IEEE S&P 2022,
arXiv:2112.03570).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hpcfed.core.errors import ConfigError
from hpcfed.launch.leakage import uploads

if TYPE_CHECKING:
    from hpcfed.clients.client import Shard
    from hpcfed.engine.rounds import Rounds
    from hpcfed.federation.federation import Federation

FALSE_POSITIVES = 0.01  # rate at which the true positive rate is reported


class Membership(NamedTuple):
    """How well losses tell members from other examples.

    tpr: true positive rate at the false positive rate FALSE_POSITIVES.
    """

    auc: float
    advantage: float
    tpr: float


def measure(members: np.ndarray, others: np.ndarray) -> Membership:
    """Return the success of all thresholds.  members, others: losses [n], [m]; neither is empty."""
    from sklearn.metrics import roc_auc_score, roc_curve

    member = np.repeat([1, 0], [len(members), len(others)])
    losses = np.concatenate([members, others])
    scores = -np.nan_to_num(losses, nan=np.finfo(losses.dtype).max)
    false, true, _ = roc_curve(member, scores, drop_intermediate=False)
    return Membership(
        float(roc_auc_score(member, scores)),
        float((true - false).max()),
        float(true[false <= FALSE_POSITIVES].max()),
    )


def infer_members(rounds: Rounds, k: int) -> tuple[int, int, Membership]:
    """Return the numbers of members and of others of client k, and the attack's success.

    Members are its training examples, others its test examples. The model is the one that the
    server receives of it.
    """
    fed, client = rounds.fed, rounds.fed.clients[k]
    if fed.task.compares_examples:
        raise ConfigError(
            f"leakage: --attack membership needs the loss of each example, but that of task "
            f"{fed.task.name!r} compares examples with one another; take data of another task"
        )
    if not len(client.test):
        raise ConfigError(f"leakage: client {k} has no test examples to compare its members with")
    received = uploads.receive(rounds, k)
    module = fed.module(client.architecture).model.eval()
    weights = {**received.received, **(received.change + received.received)}
    losses = [losses_of(fed, module, weights, data) for data in (client.train, client.test)]
    return len(client.train), len(client.test), measure(*losses)


@torch.no_grad()
def losses_of(
    fed: Federation, module: nn.Module, weights: dict[str, Tensor], data: Shard
) -> np.ndarray:
    """Return the loss of each example, [n], float64."""
    losses: list[float] = []
    for rows in np.array_split(np.arange(len(data)), -(-len(data) // fed.job.evaluate.batch)):
        x, y = data.batch(rows)
        outputs = functional_call(module, weights, (fed.prepare(x),))
        losses += [float(fed.task.loss(outputs[i : i + 1], y[i : i + 1])) for i in range(len(rows))]
    return np.array(losses)
