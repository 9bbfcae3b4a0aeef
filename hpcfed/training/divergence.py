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
) -> None:
    """Raise DivergedError if a loss or a weight is not finite.

    values: losses of all steps.  examples: batch sizes of all steps.  n: examples of an epoch.
    """
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad) and finite(weights):
        return
    what = f"its weights are nan or infinite after round {t + 1}"
    if len(bad):
        epoch = sum(examples[: bad[0]]) // n
        batch = bad[0] - epoch * math.ceil(n / max(1, examples[0]))
        what = (
            f"the loss is {values[bad[0]]} in round {t + 1}, epoch {epoch + 1}, batch {batch + 1}"
        )
    error = DivergedError(
        f"{fed.warnings.where(client)}: {what} (lr {lr:g}); {fed.warnings.last_checkpoint}\n"
        "  a smaller local.lr, or other data, may help"
    )
    error.client = client.id
    raise error
