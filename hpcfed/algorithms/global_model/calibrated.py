"""Base class of methods whose clients train with logits that depend on their examples by class."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from hpcfed import Client, Federation, Model, Params
from hpcfed.algorithms.base import Averaging


class Calibrated(Averaging):
    """FedAvg with calibrated logits in training; evaluation calibrates nothing."""

    def calibration(self, counts: np.ndarray) -> Tensor:
        """Return one number for each class, [C].

        counts: examples of each class that the client has, [C].
        """
        raise NotImplementedError

    def calibrate(self, logits: Tensor, calibration: Tensor) -> Tensor:
        """Return the logits with which a client trains, [n, C]."""
        raise NotImplementedError

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        return client.task.loss(self.calibrate(model(x), state["calibration"]), y)

    def train(self, fed: Federation, client: Client, received: Params, t: int, **how: Any) -> int:
        calibration = self.calibration(fed.label_counts[client.id]).to(fed.device)
        return super().train(fed, client, Params(calibration=calibration), t, **how)
