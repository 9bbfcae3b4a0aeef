"""Tallies: what each client received, sent and computed in a round.

A tally holds the numbers of the client's row in the record.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from hpcfed.core.payload import Tally

if TYPE_CHECKING:
    from hpcfed.clients.client import Client


class Tallies(defaultdict[int, Tally]):
    """Tallies of round `t` by client, for this rank's clients that did something.

    `sum_messages` are bytes of secure sums' own messages by client, among what it received.

    The same on all ranks are `secure_sums`, the number of them in the round, and whether one has
    failed; `delays`, virtual seconds of clients beside training and transfers; and `server_delay`,
    those of the server.
    """

    def __init__(self) -> None:
        super().__init__(Tally)
        self.open(0)

    def open(self, t: int) -> None:
        """Begin round t with empty tallies."""
        self.clear()
        self.t = t
        self.sum_messages: defaultdict[int, int] = defaultdict(int)
        self.secure_sums, self.secure_failed = 0, False
        self.delays: defaultdict[int, float] = defaultdict(float)
        self.server_delay = 0.0

    def add_training(
        self,
        client: Client,
        losses: np.ndarray,
        examples: list[int],
        seconds: float,
        on_own_data: bool = True,
        copies: int = 1,
        size: int | None = None,
    ) -> None:
        """Add local training to a client's tally: mean losses and sizes of its batches.

        seconds: time of the training, without the time of recording CUDA graphs, which is spent
        once.
        on_own_data: on the client's own examples. Training on other examples (public data) counts
        as work, but not for epochs and training loss.
        copies: of each example that went through the model, forward and backward.
        size: examples in an epoch; by default the client's.
        """
        tally = self[client.id]
        tally.work += copies * sum(examples)
        tally.seconds += seconds
        if on_own_data:
            sizes = np.array(examples, dtype=float)
            tally.loss += float(losses @ sizes)
            tally.squares += float(np.square(losses) @ sizes)
            tally.examples += sum(examples)
            tally.epochs += sum(examples) / (size or client.n)
