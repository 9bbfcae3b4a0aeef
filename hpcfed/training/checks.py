"""What local training left, looked at once it is done: a step waits for no transfer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hpcfed.errors import DivergedError
from hpcfed.payload import finite

if TYPE_CHECKING:
    from hpcfed.client import Client
    from hpcfed.federation import Federation


def on_host(losses: list[Tensor]) -> np.ndarray:
    """The losses of all steps, float64, in one transfer."""
    return torch.stack(losses).double().cpu().numpy() if losses else np.zeros(0)


def checked(
    fed: Federation, client: Client, t: int, values: np.ndarray, weights: Tensor, examples: list[int], lr: float, n: int
) -> None:
    """DivergedError if a loss, or a weight, is not finite; n: examples of an epoch."""
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad) and not finite(weights):
        raise DivergedError(
            f"{fed.where(client)}: its weights are nan or infinite after round {t + 1} (lr {lr:g}); "
            f"{fed.last_checkpoint}\n  a smaller local.lr, or other data, may help"
        )
    if len(bad):
        seen = sum(examples[: bad[0]])
        epoch, per_epoch = seen // n, math.ceil(n / examples[0])
        raise DivergedError(
            f"{fed.where(client)}: the loss is {values[bad[0]]} in round {t + 1}, epoch {epoch + 1}, "
            f"batch {bad[0] - epoch * per_epoch + 1} (lr {lr:g}); {fed.last_checkpoint}\n"
            "  a smaller local.lr, or other data, may help"
        )
