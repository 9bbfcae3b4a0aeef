"""The one evaluation: accuracy and loss of a model on a client's test set. It draws nothing and trains nothing.

What is reported of client k in a round (papers differ; results say it in these words):
- before: the model as the client has it when the round starts, what it received included; cohort only.
- after: the client's own model after its local training, before anything new arrives. A client outside the
  cohort keeps its model and so its score; where clients keep nothing (FedAvg), it is the new global model.
- common: the server's new model on the whole test split, where it is a whole model; each rank takes a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from hpcfed.data.augment import prepare

if TYPE_CHECKING:
    from hpcfed.client import Client, Shard
    from hpcfed.federation import Federation


class Score(NamedTuple):
    """Share of correct answers, and mean cross-entropy; nan without test examples."""

    accuracy: float
    loss: float


NONE = Score(float("nan"), float("nan"))


def score(fed: Federation, client: Client) -> Score:
    """The client's model as it is now, on its test set."""
    with fed.clock("evaluate"):
        return measure(fed, client.model, client.test)


def common(fed: Federation) -> float:
    """Accuracy of the pooled client's model on the whole test split; collective, the same for any ranks."""
    model = fed.pooled().model
    with fed.clock("evaluate"):
        right = round(measure(fed, model, fed.common).accuracy * len(fed.common)) if len(fed.common) else 0
    counts = fed.comm.gather({fed.comm.rank: (right, len(fed.common))})
    return sum(c for c, _ in counts.values()) / sum(n for _, n in counts.values())


@torch.no_grad()
def measure(fed: Federation, model: nn.Module, test: Shard) -> Score:
    """A model on some examples, in batches of evaluate.batch."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=fed.device)  # correct answers, loss
    for rows in np.array_split(np.arange(len(test)), max(1, -(-len(test) // fed.job.evaluate.batch))):
        x, y = test.batch(rows)
        logits = model(prepare(x, fed.mean_pixel, fed.std_pixel))
        sums[0] += (logits.argmax(1) == y).sum()
        sums[1] += F.cross_entropy(logits, y, reduction="sum")
    if not len(test):
        return NONE
    correct, loss = (sums / len(test)).tolist()
    return Score(correct, loss)
