"""Evaluation: accuracy and loss of a model on a client's test set.

It trains nothing. A model that draws in eval mode draws from a stream of its client's own
(`draws`), so that its score depends on nothing else.

The scores of client k in a round (papers differ in what they report; results use these words):
- before: the client's model at the start of the round, after its download. Only the cohort has it.
- after: the client's own model after its local training and before its next download. A client
  outside the cohort keeps its model, and therefore its score. If clients keep nothing (FedAvg), it
  is the new global model.
- received: the model that each client would receive now, for example a global model on each
  client's test set.
- common: the server's new model on the whole test split, if the server has a whole model. Each rank
  evaluates a part.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hpcfed.core import rng
from hpcfed.training.batches import chunks
from hpcfed.training.losses import cox
from hpcfed.training.metrics import Answers

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.federation.federation import Federation


class Score(NamedTuple):
    """Accuracy and mean cross-entropy; nan without test examples.

    For survival times the loss is `losses.cox`, and the accuracy is nan.

    answers: the data for metrics other than accuracy, if the run measures any.
    validation: accuracy, loss and number of the examples that the client holds out, if it does.
    """

    accuracy: float
    loss: float
    answers: Answers | None = None
    validation: tuple[float, float, int] | None = None


NONE = Score(float("nan"), float("nan"))


Predict = Callable[[Tensor], Tensor]  # prepared inputs [n, *shape] -> logits or other scores [n, C]


def draws(
    fed: Federation, client: Client, purpose: str = "predictor"
) -> AbstractContextManager[object]:
    """Let the block draw from the client's own stream for a purpose, the same in every round.

    By default the block makes a client's predictor.
    """
    return rng.scoped(fed.seed, purpose, client.id, device=fed.device)


def score(fed: Federation, client: Client, predict: Predict, validate: bool = False) -> Score:
    """Return the score of the client's present model on its test set.

    validate: score it also on the examples that the client holds out.
    """
    with fed.clock("evaluate"), draws(fed, client, "evaluate"):
        client.model.eval()
        found = measure(fed, predict, client.test)
        if not validate or not client.validation:
            return found
        held = measure(fed, predict, client.validation)
        return found._replace(validation=(held.accuracy, held.loss, len(client.validation)))


def common(fed: Federation, predict: Predict) -> float:
    """Return the accuracy of the pooled client's model on the whole test split; collective.

    It is the same for any number of ranks, and nan for survival times. A model that draws answers
    each example by itself, from a stream of the example's own.
    """
    test = fed.data.test
    if test.labels.ndim > 1:
        return float("nan")
    with fed.clock("evaluate"):
        fed.pooled().model.eval()
        with rng.scoped(fed.seed, "evaluate", "common", device=fed.device) as drawn:
            right = count_right(fed, predict, test)
            drew = drawn()
        if drew:
            right = 0
            for i, row in enumerate(test.rows.tolist()):
                with rng.scoped(fed.seed, "evaluate", "common", row, device=fed.device):
                    right += count_right(fed, predict, test.pick(np.array([i])))
    fed.exchange.wait("common accuracy")
    counts = fed.comm.gather({fed.comm.rank: (right, len(test))})
    return sum(c for c, _ in counts.values()) / sum(n for _, n in counts.values())


def count_right(fed: Federation, predict: Predict, test: Shard) -> int:
    """Return the number of examples that a model classifies correctly."""
    return round(measure(fed, predict, test).accuracy * len(test)) if len(test) else 0


@torch.no_grad()
def measure(fed: Federation, predict: Predict, test: Shard) -> Score:
    """Return the score of a model on some examples, in batches of evaluate.batch."""
    if not len(test):
        return NONE
    if test.labels.ndim > 1:
        return measure_survival(fed, predict, test)
    sums = torch.zeros(2, dtype=torch.float64, device=fed.device)  # correct answers, loss
    wanted, parts = fed.data.metrics != ("accuracy",), []
    for rows in chunks(fed, len(test)):
        x, y = test.batch(rows)
        logits = predict(fed.prepare(x))
        right, loss = (logits.argmax(1) == y).sum(), F.cross_entropy(logits, y, reduction="sum")
        sums += torch.stack([right.double(), loss.double()])
        if wanted:
            parts.append(answered(logits))
    correct, loss = (sums / len(test)).tolist()
    return Score(correct, loss, answers_to(test.labels, parts, fed.classes) if wanted else None)


def measure_survival(fed: Federation, predict: Predict, test: Shard) -> Score:
    """Return the score of a model of survival times; see `measure`.

    There is no accuracy; the Cox loss is that of all examples together, and the answers are log
    risks.
    """
    batches = (test.batch(rows)[0] for rows in chunks(fed, len(test)))
    risk = torch.cat([predict(fed.prepare(x))[:, 0].float() for x in batches])
    loss = cox(risk.double(), test.targets(np.arange(len(test))).double())
    time, event = test.labels.T
    answers = {"time": time, "event": event.astype(np.uint8), "risk": risk.cpu().numpy()}
    return Score(float("nan"), float(loss), answers)


def answered(logits: Tensor) -> tuple[Tensor, ...]:
    """Return the predicted classes, [b], and for two classes also the margins, [b]."""
    predicted = logits.argmax(1)
    if logits.shape[1] != 2:
        return (predicted,)
    return predicted, (logits[:, 1] - logits[:, 0]).float()


def answers_to(labels: np.ndarray, parts: list[tuple[Tensor, ...]], classes: int) -> Answers:
    """Return the answers to examples with these labels, [n].

    parts: the results of `answered`, batch after batch.
    """
    whole = [torch.cat(columns).cpu().numpy() for columns in zip(*parts, strict=True)]
    small = np.min_scalar_type(classes - 1)  # one byte for each example, up to 256 classes
    answers = {"y": labels.astype(small), "predicted": whole[0].astype(small)}
    return answers | ({"margin": whole[1]} if len(whole) > 1 else {})
