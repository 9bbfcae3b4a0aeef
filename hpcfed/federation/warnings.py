"""Messages on stderr, and how they name rank, client and checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from hpcfed.core.errors import WARNING, format_error

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.comm import Comm


class Warnings:
    """Warnings of all ranks, each printed once, by rank 0.

    Rank 0 prints its own at once. Those of other ranks wait in `waiting` until rank 0 gets them
    with the record of a round (`print_all`).
    """

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self.last_checkpoint = (
            "no checkpoint yet"  # text about the last checkpoint in error messages
        )
        self.waiting: list[str] = []  # messages of another rank than 0
        self.quiet = False  # print nothing, as in a rehearsal
        self._said: set[str] = set()

    def say(self, message: str) -> None:
        """Print a message once: at once on rank 0, with the next `print_all` from other ranks."""
        if message in self._said or self.quiet:
            return
        self._said.add(message)
        if self.comm.rank:
            self.waiting.append(message)
            return
        with suppress(OSError):  # if the disk of a log is full, the run continues
            print(format_error(f"{WARNING}{message}"), file=sys.stderr, flush=True)

    def print_all(self, by_rank: Sequence[Sequence[str]]) -> None:
        """Print the waiting messages of each rank, [R], on rank 0; no message waits afterwards.

        A message of several ranks is printed once, with all of them.
        """
        self.waiting = []
        if self.comm.rank:
            return
        ranks: dict[str, list[str]] = {}
        for rank, messages in enumerate(by_rank):
            for message in messages:
                ranks.setdefault(message, []).append(str(rank))
        for message, of in ranks.items():
            if message not in self._said:
                self.say(f"rank{'s' * (len(of) > 1)} {', '.join(of)}: {message}")

    def where(self, client: Client | None) -> str:
        """Return the rank and client as error messages name them; None stands for the server."""
        who = f"client {client.id} ({client.architecture})" if client else "server"
        return f"rank {self.comm.rank} of {self.comm.size}: {who}"
