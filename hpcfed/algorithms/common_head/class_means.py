"""Mean representations by class, which clients send in place of weights."""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F

from hpcfed import Client, Federation, Model, Upload
from hpcfed.training.infer import class_sums, represent
from hpcfed.training.losses import nearest


def class_means(fed: Federation, client: Client, relu: bool = False) -> Upload:
    """Return the client's mean representation of each class that it has, and the classes.

    mean: [C_k, d], over all training examples, by the model as it is now.
    label: classes, [C_k].
    relu: the mean is that of the representations after a ReLU.
    """
    z = represent(fed, client, client.train)
    return mean_by_class(fed, client, F.relu(z) if relu else z)


def mean_by_class(fed: Federation, client: Client, z: torch.Tensor) -> Upload:
    """Return the mean of each class that the client has, and the classes, as `class_means`.

    z: a row for each training example, [n, d].
    """
    sums, counts = class_sums(z, client.train.labels, fed.classes)
    present = counts > 0
    means = (sums[present] / counts[present, None]).float()
    return Upload(mean=means, label=present.nonzero()[:, 0].int())


def choose_predictor(
    model: Model, proto: torch.Tensor, inference: Literal["prototype", "head"]
) -> Callable[[Any], torch.Tensor]:
    """Return what predicts by the nearest prototype; by the model's head if there is none.

    proto: [C, d]; a row is nan if no client has sent the class yet.
    """
    if inference == "head" or proto.isnan().all():
        return model
    return lambda x: nearest(model.body(x), proto)


def join_means(sent: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the means of all clients, [n, d], and their classes, [n]."""
    means = torch.cat([pair["mean"] for pair in sent])
    return means, torch.cat([pair["label"] for pair in sent]).long()
