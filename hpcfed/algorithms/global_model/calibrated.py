"""Base class of methods whose clients train with logits that depend on their examples by class."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from hpcfed import Client, Federation, Mean, Model, Params, RoundBased, Upload


class Calibrated(RoundBased):
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

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        calibration = self.calibration(fed.label_counts[client.id]).to(fed.device)
        self.train(fed, client, Params(calibration=calibration), t)  # which is never sent
        return Upload(Mean.of(client.params(), self.weight(client)), relative_to=download)
