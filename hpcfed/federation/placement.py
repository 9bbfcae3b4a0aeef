"""Placement of clients on ranks, and migration of a client with its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.federation.replay_log import Entry

if TYPE_CHECKING:
    from hpcfed.clients.client import Clients
    from hpcfed.clients.store import ClientStore
    from hpcfed.comm import Comm
    from hpcfed.federation.replay_log import ReplayLog

ROUND = "round"  # in a client's parcel: its completed turns of the current round


class Placement:
    """Rank of each client, and the state that moves with it.

    A client's parcel holds its weights, its memory and its completed turns of the current round.
    ranks: [K], the rank of each client.
    speeds: [R], relative speeds of the ranks.
    costs: [K], estimated work of one epoch of each client.
    """

    def __init__(
        self,
        ranks: list[int],
        speeds: list[float],
        costs: Sequence[float] | np.ndarray,
        comm: Comm,
        clients: Clients,
        store: ClientStore,
        replay: ReplayLog,
    ) -> None:
        self.ranks, self.speeds, self.costs = ranks, speeds, costs
        self._comm, self._clients, self._store, self._replay = comm, clients, store, replay

    def parcel(self, k: int) -> dict[str, Any]:
        """Return the state that goes with client k to another rank or to a checkpoint."""
        entry = {ROUND: self._replay.of(k).encode()} if k in self._replay else {}
        return self._store.parcel(k) | entry

    def has_parcel(self, k: int) -> bool:
        """Return whether client k of this rank has state."""
        return k in self._store or k in self._replay

    def with_parcel(self) -> set[int]:
        """Return the clients of this rank that have state."""
        return {*self._store, *self._replay}

    def move(self, k: int, src: int, dst: int) -> None:
        """Move client k, with its parcel, from one rank to another; collective."""
        parcel = self._comm.move(self.parcel(k) if k in self._clients else None, src, dst)
        self._store.forget(k)
        self._replay.entries.pop(k, None)
        self.ranks[k] = dst
        if self._comm.rank == dst:
            self.restore(k, parcel)  # type: ignore[arg-type]  # it comes to dst

    def restore(self, k: int, parcel: dict[str, Any]) -> None:
        """Restore client k of this rank from its parcel."""
        self._store.put(k, parcel["weights"], parcel["memory"])
        if ROUND in parcel:
            self._replay.entries[k] = Entry.decode(np.asarray(parcel[ROUND]))
