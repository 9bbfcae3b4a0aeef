"""Scores of classes that are not simply a model's logits."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

Mask = Literal["zero", "drop", "none"]


def nearest(z: Tensor, proto: Tensor) -> Tensor:
    """Return scores of the classes, [n, C], from the distances to prototypes.

    A score is minus the squared Euclidean distance to the class's prototype.
    z: [n, d].  proto: [C, d]; a class without a prototype (nan) is farther away than any other.
    """
    squares = torch.cdist(z, proto.nan_to_num()).square()
    return -squares.where(~proto.isnan().any(1), squares.max(1, keepdim=True).values + 1)


def mask_logits(logits: Tensor, present: np.ndarray, mask: Mask) -> Tensor:
    """Return the logits with those of absent classes set to 0 or to minus infinity.

    logits: [n, C].  present: the classes that are present.  mask: "zero", "drop", or "none" to
    change nothing.
    Diao et al. (HeteroFL), ICLR 2021, section 3: a class at 0 still counts in the softmax; one that
    is dropped, at minus infinity, does not, and a test example of such a class has an infinite
    loss.
    """
    if mask == "none" or len(present) == logits.shape[1]:
        return logits
    return fill_absent(logits, absent_classes(present, logits.shape[1], logits.device), mask)


def absent_classes(present: np.ndarray, classes: int, device: torch.device) -> Tensor:
    """Return whether each class is absent, [C] on the device."""
    absent = np.ones(classes, bool)
    absent[present] = False
    return torch.from_numpy(absent).to(device)


def fill_absent(logits: Tensor, absent: Tensor, mask: Mask) -> Tensor:
    """Return the logits with those of these classes set to 0 or, where the mask drops them, to
    minus infinity.
    """
    return logits.masked_fill(absent, 0.0 if mask == "zero" else -torch.inf)
