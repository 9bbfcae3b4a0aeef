"""Checks of the losses and weights after local training, so that no step waits for a transfer.

`LocalSteps` makes them at its end. For what follows see `federation.turns`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hpcfed.core.errors import DivergedError
from hpcfed.core.payload import finite

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation

ADAPT = "adapt"  # the phase of the adaptation after the last round


def on_host(losses: list[Tensor]) -> np.ndarray:
    """Return the losses of all steps, float64, in one transfer."""
    return torch.stack(losses).double().cpu().numpy() if losses else np.zeros(0)


def check_finite(
    fed: Federation,
    client: Client,
    t: int,
    values: np.ndarray,
    weights: Tensor,
    examples: list[int],
    lr: float,
    n: int,
    phase: str = "train",
) -> None:
    """Raise DivergedError if a loss or a weight is not finite.

    values: losses of all steps.  examples: batch sizes of all steps.  n: examples of an epoch.
    phase: of the training; that of `[adapt]` follows on the last round.
    """
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad) and finite(weights):
        return
    place, field = f"round {t + 1}", "local.lr"
    if phase == ADAPT:
        place, field = "the adaptation after the last round", "adapt.lr"
    what = f"its weights are nan or infinite after {place}"
    if len(bad):
        epoch = sum(examples[: bad[0]]) // n
        batch = bad[0] - epoch * math.ceil(n / max(1, examples[0]))
        what = f"the loss is {values[bad[0]]} in {place}, epoch {epoch + 1}, batch {batch + 1}"
    error = DivergedError(
        f"{fed.warnings.where(client)}: {what} (lr {lr:g}); {fed.warnings.last_checkpoint}\n"
        f"  a smaller {field}, or other data, may help"
    )
    error.client = client.id
    raise error
