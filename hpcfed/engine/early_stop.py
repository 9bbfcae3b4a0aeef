"""Early stopping: the run ends if the validation loss has not fallen for some evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

LOSS = "clients/loss_validation"


class EarlyStop:
    """The validation loss, mean over clients, and how long it has not fallen.

    All ranks note the same records, so that all end in the same round.
    patience: evaluations without a lower loss after which the run ends; 0: it never does.
    best: the lowest loss so far.  round: in which it was, from 1.  waited: evaluations since.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best, self.round, self.waited = np.inf, 0, 0

    def note(self, t: int, row: Mapping[str, Any]) -> None:
        """Take the record of round t, from 1; one that was not evaluated changes nothing."""
        losses = np.asarray(row.get(LOSS, ()), dtype=float)
        losses = losses[np.isfinite(losses)]
        if not len(losses):
            return
        if losses.mean() < self.best:
            self.best, self.round, self.waited = float(losses.mean()), t, 0
        else:
            self.waited += 1

    @property
    def reason(self) -> str:
        """Why the run ends; "" if it continues."""
        if not self.patience or self.waited < self.patience:
            return ""
        return (
            f"the validation loss was lowest in round {self.round} ({self.best:.4g}) and has not "
            f"fallen in the {self.waited} evaluations since (evaluate.patience)"
        )

    def to_tree(self) -> dict[str, Any]:
        """Return the part of a checkpoint that concerns early stopping."""
        return {"early_stop": np.array([self.best, self.round, self.waited], dtype=float)}

    def from_tree(self, tree: Mapping[str, Any]) -> None:
        """Restore the state that `to_tree` returned."""
        self.best, t, waited = np.array(tree["early_stop"]).tolist()
        self.round, self.waited = int(t), int(waited)
