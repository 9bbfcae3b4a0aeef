"""What each client received, sent and computed in a round: the numbers of its row in the record."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from hpcfed.core.payload import Tally

if TYPE_CHECKING:
    from hpcfed.clients.client import Client


class Tallies(defaultdict[int, Tally]):
    """The tallies of round `t`, by client; of this rank's clients that did something."""

    def __init__(self) -> None:
        super().__init__(Tally)
        self.t = 0

    def open(self, t: int) -> None:
        """Begin round t: no client has done or sent anything."""
        self.clear()
        self.t = t

    def add_training(
        self,
        client: Client,
        losses: np.ndarray,
        examples: list[int],
        seconds: float,
        own: bool = True,
        views: int = 1,
        size: int | None = None,
    ) -> None:
        """Add a stretch of local training: mean losses and sizes of its batches.

        seconds: what it takes each time.  own: on the client's own examples; training on others'
        (public data) is work, but no epoch and no training loss.  views: copies of each example
        that went through the model.  size: examples in an epoch; default: the client's.
        """
        tally = self[client.id]
        tally.work += views * sum(examples)
        tally.seconds += seconds
        if own:
            tally.loss += float(losses @ np.array(examples, dtype=float))
            tally.examples += sum(examples)
            tally.epochs += sum(examples) / (size or client.n)
