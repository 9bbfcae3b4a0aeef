"""What travels between clients and server: counted by client, moved to a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass
class Tally:
    """What one client did in one round. Bytes are those of tensors; numbers beside them are not counted."""

    loss: float = 0.0  # sum over examples
    examples: int = 0
    epochs: float = 0.0
    seconds: float = 0.0
    down: int = 0
    up: int = 0


def on_device(value: Any, device: torch.device) -> Any:
    """Nested dicts of tensors and other things, with the tensors on the device."""
    if isinstance(value, dict):
        return type(value)({name: on_device(v, device) for name, v in value.items()})
    return value.to(device) if isinstance(value, Tensor) else value


def nbytes(value: Any) -> int:
    """Bytes of the tensors and arrays in a value: tensors, mappings, sequences of them; other things are 0."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(nbytes(v) for v in value.values())
    return sum(nbytes(v) for v in value) if isinstance(value, list | tuple) else 0
