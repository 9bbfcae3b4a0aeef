"""What a round's record holds of clients and ranks."""

from __future__ import annotations

import resource
from dataclasses import fields
from typing import Any

import torch

from hpcfed.core.payload import Tally

Row = dict[str, Any]
COLUMNS = (
    "train_loss",
    "examples",
    "epochs",
    "seconds",
    "down",
    "up",
    "work",
    "accuracy_before",
    "loss_before",
    "accuracy_received",
    "loss_received",
    "accuracy",
    "loss",
)
# up to so many clients each has a value in every round's record, beyond only who took part
SMALL = 10_000


def cells(tally: Tally) -> tuple[float, ...]:
    """A tally as a row of the table: the mean loss first."""
    loss, *rest = (getattr(tally, f.name) for f in fields(tally))
    return (loss / tally.examples if tally.examples else float("nan"), *rest)


NOTHING = (
    *cells(Tally()),
    *6 * [float("nan")],
)  # of a client that did nothing and was not evaluated


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_device_bytes(device: torch.device) -> int:
    """Most of a GPU's memory that torch has held for this process so far, graphs' included; 0 on a
    CPU.
    """
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0
