"""Evaluation: main metric and loss of a model on a client's test set.

It trains nothing. A model that draws in eval mode draws from a stream of its client's own
(`draws`), so that its score depends on nothing else.

The scores of client k in a round (papers differ in what they report; results use these words):
- before: the client's model at the start of the round, after its download. Only the cohort has it.
- after: the client's own model after its local training and before its next download. A client
  outside the cohort keeps its model, and therefore its score; one that keeps nothing (FedAvg) is
  scored with the new global model.
- received: the model that each client would receive now, for example a global model on each
  client's test set.
- common: the server's new model on the full test split, if the server has a complete model. Each
  rank evaluates a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfed.tasks.task import Answers, concat
from hpcfed.training.batches import chunks

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.federation.federation import Federation


class Score(NamedTuple):
    """Main metric and mean default loss of the task; nan without test examples.

    one_class: the class that the model predicts for all examples; nan if there are several, or if
    the task has no classes.
    answers: the data for other metrics, if the run measures any.
    validation: metric, loss and number of the examples that the client holds out, if it does.
    """

    metric: float
    loss: float
    one_class: float = float("nan")
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
    return fed.scoped(purpose, client.id)


def score(fed: Federation, client: Client, predict: Predict, validate: bool = False) -> Score:
    """Return the score of the client's present model on its test set.

    validate: score it also on the examples that the client holds out.
    """
    with fed.clock("evaluate"), draws(fed, client, "evaluate"):
        client.model.eval()
        tested = with_groups(fed, measure(fed, predict, client.test), client.test)
        answers = tested.answers if fed.task.needs(fed.data.metrics, "threshold") else None
        if not (validate or answers):
            return tested
        validated = measure(fed, predict, client.validation) if client.validation else NONE
        if answers:
            tested = tested._replace(answers=fed.task.decide(answers, validated.answers))
        if not validate or not client.validation:
            return tested
        return tested._replace(
            validation=(validated.metric, validated.loss, len(client.validation))
        )


def score_on(fed: Federation, client: Client, predict: Predict, test: Shard) -> float:
    """Return the main metric of the client's present model on other examples than its tests."""
    with fed.clock("evaluate"), draws(fed, client, "evaluate"):
        client.model.eval()
        return measure(fed, predict, test).metric


def common(fed: Federation, predict: Predict, test: Shard | None = None) -> float:
    """Return the main metric of the pooled client's model on the full test split; collective.

    test: this rank's part of other examples, to be scored instead.
    It is the same for any number of ranks. A model that draws answers each example by itself, from
    a stream of the example's own.
    """
    test, task = fed.data.test if test is None else test, fed.task
    with fed.clock("evaluate"):
        fed.pooled().model.eval()
        with fed.scoped("evaluate", "common") as has_drawn:
            answers = answer(fed, predict, test)
            drew = has_drawn()
        if drew:
            parts = []
            for i, row in enumerate(test.ids.tolist()):
                with fed.scoped("evaluate", "common", row):
                    parts += answer(fed, predict, test.pick(np.array([i])))
            answers = [concat(parts)] if parts else []
    fed.exchange.wait("common metric")
    of_ranks = fed.comm.gather({fed.comm.rank: (test.ids, answers)})
    ids = np.concatenate([ids for ids, answers in of_ranks.values() if answers])
    everything = concat([one for _, answers in of_ranks.values() for one in answers])
    order = np.argsort(ids)
    return task.compute([task.main], {name: of[order] for name, of in everything.items()})[0]


@torch.no_grad()
def answer(
    fed: Federation, predict: Predict, test: Shard, metrics: Sequence[str] = ()
) -> list[Answers]:
    """Return the answers of a model to some examples; none if there are no examples.

    metrics: those that are computed from the answers; default: the main one.
    """
    if not len(test):
        return []
    measured = metrics or [fed.task.main]
    answers = fed.task.score(outputs(fed, predict, test), measured, keep=True)[-1]
    assert answers is not None  # they are kept
    return [answers]


@torch.no_grad()
def measure(fed: Federation, predict: Predict, test: Shard) -> Score:
    """Return the score of a model on some examples, in batches of evaluate.batch."""
    if not len(test):
        return NONE
    keep = fed.data.groups is not None
    return Score(*fed.task.score(outputs(fed, predict, test), fed.data.metrics, keep))


def with_groups(fed: Federation, tested: Score, test: Shard) -> Score:
    """Return the score with the group of each test example among its answers, if there are any."""
    groups = fed.data.groups
    if groups is None or tested.answers is None:
        return tested
    return tested._replace(answers=tested.answers | {"group": groups[test.rows].astype(np.uint8)})


def outputs(fed: Federation, predict: Predict, test: Shard) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a model's outputs, and the labels, of one batch of examples after the other."""
    if test.lengths is None:
        batches = chunks(fed, len(test))
    else:
        batches = np.split(np.arange(len(test)), np.cumsum(test.lengths)[:-1])
    for rows in batches:
        x, y = test.batch(rows)
        yield predict(fed.prepare(x)), y
